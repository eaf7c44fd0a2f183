"""The pure core: decide, evolve, replay. No I/O, no clock, no randomness; everything comes in through Context."""

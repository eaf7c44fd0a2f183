"""The words that agent names are made of: short, concrete, inoffensive. Data only.

Names once given stay valid for ever in the registry; the lists are for new ones, and for hints.
"""

from __future__ import annotations

ADJECTIVES: tuple[str, ...] = tuple(
    """
able agile airy alert amber ample apt aqua arctic ashen autumn azure balmy bare basic beige big bitter black
blond blue blunt bold bonny brave breezy brief bright brisk broad bronze brown bumpy burly busy calm candid
casual cheery chief chilly chrome civil clean clear clever close cloudy coastal cobalt cold cool copper coral
cosmic cozy cream creamy crimson crisp cubic curly curvy cyan dainty damp dapper dark dawn dear deep deft dense
dewy direct distant dotted double downy dry dual dusky dusty eager early earthy eastern easy ebony elder elegant
emerald even exact extra fair fancy far fast fawn feather fertile fine firm first flat fleet floral fluffy fluid
flying foggy fond forest formal frank free fresh frosty full fuzzy gallant gentle giant gilded ginger glad
glassy gleaming glossy golden good grand granite grassy gray great green hale handy happy hardy hazel hazy
hearty heavy hidden high hollow honest humble humid icy indigo inland inner iron ivory jade jolly jovial joyful
juicy keen kind large last lasting late lavender leafy lean lemon level light lilac lime linen little lively
local lofty lone long loud low loyal lucid lucky lunar lush magenta magic main maple marble marine maroon mauve
meadow mellow merry mighty mild mint minty misty modern modest mossy muted narrow native navy neat new nimble
noble north northern novel oaken ocean ochre old olive onyx open orange outer oval pale pastel patient peach
pearl pearly placid plain pleasant plum plush polar polite prime proud prudent pure purple quaint quick quiet
rapid rare ready red regal rich rocky rosy round royal ruby rural rustic sable sage sandy sapphire satin scarlet
secure serene shady sharp sheer shiny short silent silken silver simple sincere sleek slender slim slow small
smart smoky smooth snowy snug soft solar solid sonic sound southern spare speedy spicy spry square stable starry
steady steep sterling still stout strong sturdy subtle sunlit sunny super sure sweet swift tall tame tan tawny
teal tender thrifty tidal tidy timber tiny topaz tranquil trim true trusty twin ultra umber upbeat upper urban
valid vast velvet verdant vernal violet vital vivid warm wavy western wheat white whole wide wild willing windy
winter wise witty wooden woolly young zesty
""".split()
)

NOUNS: tuple[str, ...] = tuple(
    """
acorn alder almond alpaca anchor anvil apple apricot arbor arch arrow ash aspen aster atlas badger bamboo banner
barley barn basin basket bay beach beacon bear beaver bee beech bell bench berry birch bird bison blossom bluff
boat bobcat book boulder branch brass breeze brick bridge brook broom buffalo bunting bush butte cabin cactus
camel candle canoe canopy canyon cape cardinal caribou carp castle cave cedar chalk channel cherry chestnut
cliff cloud clover coast colt comet compass condor copse cottage cougar cove coyote crab crane crater creek
crest cricket crow crystal cypress daisy dale dam deer delta den desert dingo dock dog dolphin dome door dove
dragon drake drum duck dune eagle egret elk elm ember falcon farm fawn feather fern ferry field finch fir fjord
flag flame flint flower flute fog ford forest forge fort fountain fox frog frost garden garnet gate gazelle
geyser glacier glade glen goat goose gorge granite grape grove gull hamlet harbor hare harp hatch haven hawk
hazel heath hedge heron hickory hill hive hollow holly horn horse house ibex iguana impala inlet iris island ivy
jackal jaguar jasmine jay jewel juniper kayak kelp kestrel key kite kiwi koala ladder lagoon lake lamp lantern
larch lark laurel lava leaf lemur leopard lighthouse lily linden lion lizard llama lodge loom lotus lynx magpie
mallard mantis maple market marlin marsh marten mast meadow melon mesa meteor mill mole moon moor moose moss
mountain mule nectar nest newt oak oasis ocean ocelot olive opal orca orchard orchid oriole osprey otter owl ox
oyster palm panda panther parrot pass path peach peak pear pebble pelican penguin petal pheasant pier pine
pinnacle plain planet plaza plover plum pond poplar poppy port prairie puffin puma quail quarry quartz quill
rabbit raccoon raft rain raven ravine reed reef ridge river robin rock rook root rose rowan sail salmon sand
sapling sea seal sequoia shade shell shore shrub silo sky slope snail snow sparrow spire spring spruce squirrel
stag star stone stork storm stream summit sun swallow swan temple tern thicket thistle thrush tide tiger timber
toad torch tower trail tree trout tulip tundra turtle valley vault village vine violet vole walnut walrus
warbler water wave whale willow wind wolf wombat wood wren yak yew zebra
""".split()
)

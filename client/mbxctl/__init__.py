"""mbxctl: the command line for people and scripts. This file stays empty of imports: start-up is paid per command."""

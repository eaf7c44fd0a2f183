"""The MCP stdio shim `mbx-mcp`: a pipe with manners between an agent CLI and the daemon.

This file stays empty of imports: start-up is paid once per agent session and per sub-agent.
"""

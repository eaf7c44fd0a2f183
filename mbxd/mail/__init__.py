"""The mail store: messages between identities, in one SQLite file.

Owns `<state>/mail.db`. Knows identities by integer id alone: names, roles and who may send to whom are the
registry's. Never imports an event loop. See docs/mail.md and `store.MailStore`, the way in.
"""

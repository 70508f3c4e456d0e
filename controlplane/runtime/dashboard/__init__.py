"""A fleet as a page: `look` reads it from its files and sockets, `server` serves it live on loopback."""

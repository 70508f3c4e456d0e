"""Pure text: config.pbtxt, HAProxy's configuration, model repositories."""

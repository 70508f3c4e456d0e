"""A fleet in a terminal (`ctl top`): `rows` says what is shown, `screen` shows it."""

"""What commands print: tables, single lines, progress."""

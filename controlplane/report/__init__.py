"""What commands print: tables, plots, single lines, progress."""

"""What it costs a program to be read and watched while it runs (notes 049, 052, 058)."""

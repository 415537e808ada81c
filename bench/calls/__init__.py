"""An HTTP service that is asked for each record, and the program that asks it."""

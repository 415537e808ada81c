"""The programs of `bench programs`, and their measurement beside the same in other systems."""

"""Writers of rows to other systems (note 072). `batch` has what they are given; a file for each."""

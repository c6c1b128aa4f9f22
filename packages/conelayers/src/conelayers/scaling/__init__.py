"""Balance the rows and columns of a program before it is solved."""

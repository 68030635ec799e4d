"""Uses of private or undocumented APIs of other libraries: a file for each library, with the version it was seen in."""

# Built from _python.cpp; importing it is all that there is to do.

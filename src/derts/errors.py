"""The one exception for input that cannot work: what is wrong, and how to mend it."""


class DertsError(Exception):
    """Bad input or a state that cannot go on.

    The message is one line that names the cause and the fix. The command line prints it
    without a traceback and exits with code 2; in Python it is an ordinary exception.
    """

"""A folder on the path of the Python processes that Spark starts on this machine; Python runs its ``sitecustomize``."""

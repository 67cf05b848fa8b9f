"""Who keeps an object alive: chains of references from the user's names down to it.

`backward` searches from the object up, `chains` reads what was found aloud, `mends` says how to let
go, `answer` puts it together.
"""

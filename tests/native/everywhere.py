"""One test for all instruction sets of this machine: a test each would take longer to begin than to
run."""

import functools
import inspect

from edgegossip import native

ISAS = native.available_isas()


def on_every_isa(test):
    """Call a test that takes `isa` with each of them; a failure says with which."""

    @functools.wraps(test)
    def tried(*drawn, **given):
        for isa in ISAS:
            try:
                test(*drawn, isa=isa, **given)
            except BaseException as error:
                error.add_note(f"on {isa}")
                raise

    whole = inspect.signature(test)
    tried.__signature__ = whole.replace(parameters=[p for name, p in whole.parameters.items() if name != "isa"])
    return tried

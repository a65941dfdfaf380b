"""A number on the command line."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range. click alone takes "nan" for one, which lies in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's usage error."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number

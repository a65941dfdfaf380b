import pytest

from loadtest import errors


def leaves(kind: type[errors.LoadtestError]) -> list[type[errors.LoadtestError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for kind in leaves(errors.LoadtestError):
        assert kind.__name__ in errors.__doc__
        if kind is not errors.LoadtestError:
            line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line.split())
            assert str(kind.exit_code) in line.split()


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([], 0), ([0, 98], 98), ([97, 99], 97), ([99, 98], 99), ([1, 97], 1), ([3, 1], 3), ([130, 3], 130)],
)
def test_the_worst_of_several_exit_codes_wins(codes: list[int], worst: int) -> None:
    assert errors.worst_exit_code(codes) == worst

"""Any JSON at all, as a server might answer with it."""

from collections.abc import Sequence

from hypothesis import strategies as st


def jsons(keys: str, texts: Sequence[str] = ()) -> st.SearchStrategy[object]:
    """Values whose objects have some of these ``keys``, one word each, and often one of the ``texts`` below them."""
    plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)

    def around(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        values = inner | st.sampled_from(texts) if texts else inner
        return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys.split()), values, max_size=4)

    return st.recursive(plain, around, max_leaves=12)

import pytest

from toolkit import report


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (999_700, "1000 kB"),
        (1_234_567, "1.23 MB"),
        (5e9, "5.00 GB"),
    ],
)
def test_bytes(count, text):
    assert report.num_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.00 us"), (2.5e-6, "2.50 us"), (0.00123, "1.23 ms"), (0.1234, "123 ms"), (61.2, "61.2 s")]
)
def test_seconds(value, text):
    assert report.seconds(value) == text


def test_tables_align_numbers_to_the_right():
    text = report.table([["a", "1"], ["bb", "22"]], ["name", "n"])
    assert text.splitlines() == ["name   n", "----  --", "a      1", "bb    22"]

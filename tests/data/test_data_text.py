"""Text as hashed ids: stable, in any script, words before 3-grams."""

import zlib

import numpy as np
import pytest

from fedjax_mm.data.text import LENGTH, VOCABULARY, hash_text


def ids(*tokens):
    return [1 + zlib.crc32(token.encode()) % 4095 for token in tokens]


def test_words_come_first_and_then_their_3_grams():
    (row,) = hash_text(["Red, kites!"])
    expected = ids("word red", "word kites", "gram red", "gram kit", "gram ite", "gram tes")
    assert row[: len(expected)].tolist() == expected
    assert not row[len(expected) :].any()
    assert len(set(expected)) == 6, "a word and an equal 3-gram differ"


def test_ids_do_not_depend_on_the_machine_or_the_process():
    assert hash_text(["Red car"])[0, :5].tolist() == [3948, 3280, 109, 1215, 0]


def test_what_is_cut_off_are_3_grams_before_words():
    many = " ".join(f"word{i}" for i in range(40))
    assert hash_text([many])[0].tolist() == ids(*(f"word word{i}" for i in range(32)))
    some = " ".join(f"word{i}" for i in range(31))
    assert hash_text([some])[0].tolist() == ids(*(f"word word{i}" for i in range(31)), "gram wor")


def test_rows_are_int32_within_the_vocabulary_and_empty_text_is_padding():
    table = hash_text(["", " \t\n", "?!,", "a b"])
    assert table.dtype == np.int32 and table.shape == (4, LENGTH)
    assert not table[:3].any() and np.count_nonzero(table[3]) == 2
    assert hash_text([]).shape == (0, LENGTH)
    first = hash_text(str(i) for i in range(30_000))[:, 0]
    assert first.min() == 1 and first.max() == VOCABULARY - 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("ÉTÉ", "été"), ("e\u0301te\u0301", "été"), ("ＦＵＬＬ", "full"), ("ﬁne", "fine"), ("a-b", "a b")],
)
def test_equal_texts_in_other_characters_have_equal_ids(one, other):
    np.testing.assert_array_equal(*hash_text([one, other]))


@pytest.mark.parametrize("text", ["नमस्ते", "日本語のテキスト", "Привет", "مرحبا", "😀", "x\udcff"])
def test_every_script_has_ids(text):
    row = hash_text([text])[0]
    assert row[0] > 0
    assert np.count_nonzero(row) == 1 + max(len(text) - 2, 0) * (text.isprintable())


def test_the_strings_own_width_does_not_matter():
    np.testing.assert_array_equal(hash_text(np.array(["ab", "abcdef"]))[0], hash_text(np.array(["ab"]))[0])

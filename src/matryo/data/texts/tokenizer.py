"""Texts become token ids here: a tokenizer of the ``tokenizers`` library, opened or trained, as arrays of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.meta import read_json
from matryo.errors import DataError, MissingExtra
from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Ids = np.ndarray[Any, np.dtype[np.int32]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Offsets = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Tokenizer"]

_ALPHABET = 1000   # letters that get pieces of their own; words with others are unknown
_AT_ONCE = 1024   # texts that are tokenised together
_MULTIPLE = 8   # lengths are rounded up to it: few shapes to compile for, and tensor cores like them
# How the families of tokenizers spell what BERT calls by the first name.
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<s>", "<bos>", "<|startoftext|>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}
_BERT = tuple(names[0] for names in _SPELLINGS.values())   # ids 0…4 of a tokenizer trained here


class Tokenizer:
    """Text to ids and back; ``length`` counts the special tokens at both ends.

    >>> import pytest; _ = pytest.importorskip("tokenizers")
    >>> tokenizer = Tokenizer.train(["a cat purrs", "a dog barks"], vocabulary=64)
    >>> ids, mask = tokenizer.encode(["A cat", "a dog barks"], length=32)
    >>> ids.shape, mask.sum(1).tolist(), tokenizer.decode(ids[0])
    ((2, 8), [4, 5], 'a cat')
    """

    def __init__(self, inner: Any, source: str = "tokenizer") -> None:
        self._inner = inner
        self.source = source
        inner.no_padding()   # a file may ask for some; here the call says how long a row is

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int = 8192, lowercase: bool = True) -> Tokenizer:
        """A WordPiece tokenizer of at most ``vocabulary`` pieces learned from ``texts``, with BERT's special tokens.

        With ``lowercase`` accents go too, as in BERT's uncased models.
        """
        most = min(_ALPHABET, (vocabulary - len(_BERT)) // 2)   # a letter begins words and goes on with them
        if most < 1:
            rule = f"a vocabulary has more than its {len(_BERT)} special tokens"
            raise DataError(rule, got=vocabulary, cure="8192 is a good size")
        library = _library()
        texts = list(texts) if isinstance(texts, Iterator) else _several(texts)   # they are read twice
        draft = _word_piece(library, lowercase)
        letters = _letters(draft, texts, most)
        if not letters:
            raise DataError("a tokenizer is learned from words", got="texts without any", cure="give it some texts")
        # The library meets the pieces of one letter in a random order and breaks ties by it. Named beforehand, they
        # have one order, and the same texts give the same tokenizer.
        inside = [f"##{letter}" for letter in letters if len(draft.pre_tokenizer.pre_tokenize_str("a" + letter)) == 1]
        trainer = library.trainers.WordPieceTrainer(
            vocab_size=vocabulary,
            special_tokens=[*_BERT, *inside],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        )
        draft.train_from_iterator(texts, trainer)
        inner = _word_piece(library, lowercase, draft.get_vocab())
        inner.add_special_tokens(list(_BERT))
        _surround(library, inner)
        return cls(inner)

    @classmethod
    def open(cls, path: Path | str) -> Tokenizer:
        """The tokenizer in a ``tokenizer.json``, or in a folder that holds one or, as old BERTs do, a ``vocab.txt``.

        Of a sentence-transformers folder it is that of the first module, in lower case if the folder says so.
        """
        path = Path(path)
        folder = _home(path)
        file = folder / "tokenizer.json" if path.is_dir() else path
        library = _library()
        if path.is_dir() and not file.exists() and (folder / "vocab.txt").exists():
            return cls(_lowered(library, _from_vocabulary(library, folder), folder), path.name)
        if not file.is_file():
            raise DataError(
                "a tokenizer is a tokenizer.json, or a folder that holds one or a vocab.txt",
                got=f"{path}, which {'holds neither' if path.is_dir() else 'does not exist'}",
                cure="give the folder of the model it belongs to",
            )
        try:
            inner = library.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:   # the library raises plain Exception for whatever it cannot read
            raise DataError(
                f"{file.name} is no readable tokenizer", got=f"{error!s:.120}", cure="copy it again, whole"
            ) from error
        return cls(_lowered(library, inner, folder) if path.is_dir() else inner, path.name)

    def save(self, path: Path | str) -> None:
        """Write ``tokenizer.json``, atomically: ``path`` is that file, or the folder it goes to."""
        path = Path(path)
        with replacing(path if path.suffix == ".json" else path / "tokenizer.json") as file:
            file.write(self._inner.to_str(pretty=True).encode())

    @property
    def vocabulary(self) -> int:
        """How many ids there are, special tokens included: every id is below it."""
        ids: list[int] = list(self._inner.get_vocab(with_added_tokens=True).values())
        return max(ids) + 1

    @property
    def pad(self) -> int:
        """The id that fills up rows; 0 if there is no such token, since the mask hides it anyway."""
        return self._find("pad") or 0

    @property
    def mask(self) -> int:
        """The id of [MASK], or of what this tokenizer calls it."""
        return self._must_find("mask")

    @property
    def cls(self) -> int:
        """The id of [CLS], the first of a text."""
        return self._must_find("cls")

    @property
    def sep(self) -> int:
        """The id of [SEP], the last of a text."""
        return self._must_find("sep")

    @property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens: never masked, never to be predicted."""
        added = self._inner.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def encode(self, texts: Sequence[str], length: int) -> tuple[Ids, Mask]:
        """Ids, int32 [n, L], and where they are tokens and no padding, bool [n, L].

        L is the longest of the texts, at most ``length``, rounded up to a multiple of 8 as far as ``length`` allows.
        """
        flat, offsets = self.flat(texts, length)
        sizes = np.diff(offsets)
        longest = int(sizes.max(initial=1))
        mask = np.arange(min(-(-longest // _MULTIPLE) * _MULTIPLE, length)) < sizes[:, None]
        ids = np.full(mask.shape, self.pad, np.int32)
        ids[mask] = flat
        return ids, mask

    def flat(self, texts: Iterable[str], length: int | None = None) -> tuple[Ids, Offsets]:
        """All ids end to end, int32, and offsets, int64 [n + 1]: text i is ``ids[offsets[i]:offsets[i + 1]]``.

        Each text is cut to ``length`` if given. This is how a corpus stays in memory without padding.
        """
        least = self._inner.num_special_tokens_to_add(False) + 1
        if length is not None and length < least:
            rule = f"a length has room for the {least - 1} special tokens and a word"
            raise DataError(rule, got=length, cure=f"give {least} or more")
        self._inner.no_truncation() if length is None else self._inner.enable_truncation(length)
        parts, sizes = [np.empty(0, np.int32)], [0]
        for some in _batches(_several(texts)):
            for encoding in self._inner.encode_batch_fast(some):
                ids = encoding.ids
                parts.append(np.array(ids, np.int32))
                sizes.append(len(ids))
        return np.concatenate(parts), np.cumsum(sizes, dtype=np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of ``ids``, without special tokens and normalised as the tokenizer does (perhaps lower case)."""
        text: str = self._inner.decode([int(id) for id in ids], skip_special_tokens=True)
        return text

    def __repr__(self) -> str:
        return f"Tokenizer({self.source!r}, {self.vocabulary:,} ids)"

    def _find(self, role: str) -> int | None:
        for token in _SPELLINGS[role]:
            id: int | None = self._inner.token_to_id(token)
            if id is not None:
                return id
        return None

    def _must_find(self, role: str) -> int:
        id = self._find(role)
        if id is None:
            known = ", ".join(_SPELLINGS[role])
            raise DataError(
                f"this needs a tokenizer with a {role} token, one of {known}",
                got=f"none in {self.source}",
                cure="train one: Tokenizer.train(texts), or open one of BERT's kind",
            )
        return id


def _several(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise DataError("texts are a list", got=f"{texts!r:.40}", cure="put it in a list")
    return texts


def _letters(inner: Any, texts: Iterable[str], most: int) -> list[str]:
    """The letters that ``texts`` are written with once normalised: the commonest ones, sorted."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for letter, count in raw.items():   # BERT's normaliser looks at one letter at a time
        for normal in inner.normalizer.normalize_str(letter):
            counts[normal] += count if not normal.isspace() else 0
    common = sorted(counts, key=lambda letter: (-counts[letter], letter))[:most]
    return sorted(letter for letter in common if counts[letter])


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts: enough for all processors, few enough for the memory of their encodings."""
    source = iter(texts)
    while some := list(islice(source, _AT_ONCE)):
        yield some


def _library() -> Any:
    with MissingExtra.unless_installed("tokenizers", "text"):
        import tokenizers
    return tokenizers


def _word_piece(library: Any, lowercase: bool, vocabulary: dict[str, int] | None = None, **normal: Any) -> Any:
    """BERT's tokenizer, yet without the special tokens around a text, whose ids may not be known."""
    model = library.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    inner = library.Tokenizer(model)
    inner.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase, **normal)
    inner.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    inner.decoder = library.decoders.WordPiece()
    return inner


def _surround(library: Any, inner: Any) -> None:
    """[CLS] before a text and [SEP] behind it."""
    ends = [(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    inner.post_processor = library.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)


def _home(folder: Path) -> Path:
    """Where the tokenizer of a model's folder lies: old sentence-transformers folders have a folder for each module."""
    first = read_json(folder / "modules.json", list, default=[])[:1]
    inside = folder / str(first[0].get("path", "")) if first and isinstance(first[0], dict) else folder
    return inside if any((inside / name).exists() for name in ("tokenizer.json", "vocab.txt")) else folder


def _lowered(library: Any, inner: Any, folder: Path) -> Any:
    """``inner``, behind lower case where sentence-transformers puts it there although the tokenizer does not."""
    asked = read_json(folder / "sentence_bert_config.json", dict, default={}).get("do_lower_case")
    own = inner.normalizer
    if asked and (own is None or own.normalize_str("A") != "a"):
        small = library.normalizers.Lowercase()
        inner.normalizer = small if own is None else library.normalizers.Sequence([small, own])
    return inner


def _from_vocabulary(library: Any, folder: Path) -> Any:
    """BERT's tokenizer from a ``vocab.txt``, a piece a line; ``tokenizer_config.json`` says if it is lower case."""
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece.rstrip("\r"): id for id, piece in enumerate(pieces) if piece}
    missing = [token for token in _BERT if token not in vocabulary]
    if missing:
        raise DataError(
            "vocab.txt is one of BERT's, with its special tokens",
            got=f"no {missing[0]}",
            cure="give a folder with a tokenizer.json",
        )
    config = read_json(folder / "tokenizer_config.json", dict, default={})
    lowercase, accents = bool(config.get("do_lower_case", True)), config.get("strip_accents")
    normal = {
        "strip_accents": None if accents is None else bool(accents),
        "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
    }
    inner = _word_piece(library, lowercase, vocabulary, **normal)
    inner.add_special_tokens(list(_BERT))
    _surround(library, inner)
    return inner

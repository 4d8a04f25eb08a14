"""Tokenizer: open or train a tokenizer of the ``tokenizers`` library, and convert texts to arrays of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.meta import read_json
from matryo.errors import DataError, MissingExtra, shown
from matryo.files import replacing, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matryo.arrays import Bools, Integers

    Ids = np.ndarray[Any, np.dtype[np.int32]]

_ALPHABET = 1000   # letters in the vocabulary; words with other letters become [UNK]
_BATCH = 1024   # texts per call of the library
_MULTIPLE = 8   # lengths are rounded up to a multiple of this: fewer shapes to compile, and aligned for tensor cores
# The special tokens of common tokenizers, by role; the first of each is that of BERT.
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<s>", "<bos>", "<|startoftext|>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}
# The files of a tokenizer in a model folder, which transformers reads beside tokenizer.json.
_COMPANIONS = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.txt",
    "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
BUNDLE = "tokenizer_files.json"   # in a run folder, name → content of each companion as latin-1, which keeps every byte
_BERT = tuple(names[0] for names in _SPELLINGS.values())   # ids 0…4 of a tokenizer trained by this class


class Tokenizer:
    """Convert texts to token ids and back; ``length`` includes the special tokens at both ends.

    >>> import pytest; _ = pytest.importorskip("tokenizers")
    >>> tokenizer = Tokenizer.train(["a cat purrs", "a dog barks"], vocabulary=64)
    >>> ids, mask = tokenizer.encode(["A cat", "a dog barks"], length=32)
    >>> ids.shape, mask.sum(1).tolist(), tokenizer.decode(ids[0])
    ((2, 8), [4, 5], 'a cat')
    """

    def __init__(self, inner: Any, source: str = "tokenizer", files: Mapping[str, bytes] | None = None) -> None:
        self._inner = inner
        self.source = source
        self.files = dict(files or {})
        """The files of the model folder that the tokenizer was opened from, by name, byte for byte."""
        inner.no_padding()   # padding configured in the file is ignored: each call decides the length

    @classmethod
    @checked
    def train(cls, texts: Iterable[str], vocabulary: int = 8192, lowercase: bool = True) -> Tokenizer:
        """Train a WordPiece tokenizer of at most ``vocabulary`` pieces on ``texts``, with the special tokens of BERT.

        ``lowercase`` also removes accents, as in the uncased BERT models.
        """
        most = min(_ALPHABET, (vocabulary - len(_BERT)) // 2)   # each letter needs two pieces: x and ##x
        if most < 1:
            rule = f"a vocabulary must have more than its {len(_BERT)} special tokens"
            raise DataError(rule, got=vocabulary, cure="use 8192")
        library = _library()
        texts = list(texts) if isinstance(texts, Iterator) else texts   # read twice below
        draft = _word_piece(library, lowercase)
        letters = _letters(draft, _checked_texts(texts), most)
        if not letters:
            raise DataError("a tokenizer must be trained on words", got="texts without words", cure="pass texts")
        # The library visits single-letter pieces in random order, which decides ties. Listing them as special tokens
        # fixes the order, so that the same texts always give the same tokenizer.
        words = draft.pre_tokenizer.pre_tokenize_str
        continuations = [f"##{letter}" for letter in letters if len(words("a" + letter)) == 1]
        trainer = library.trainers.WordPieceTrainer(
            vocab_size=vocabulary,
            special_tokens=[*_BERT, *continuations],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        )
        draft.train_from_iterator(texts, trainer)
        return cls(_surrounded(library, _word_piece(library, lowercase, draft.get_vocab())))

    @classmethod
    @checked
    def open(cls, path: Path | str) -> Tokenizer:
        """Open a ``tokenizer.json``, or a folder that holds one or (as older BERT models) a ``vocab.txt``.

        For a sentence-transformers folder, this is the tokenizer of the first module, lowercased if configured so.
        """
        path = Path(path)
        folder = _home(path)
        file = folder / "tokenizer.json" if path.is_dir() else path
        library = _library()
        if path.is_dir() and not file.exists() and (folder / "vocab.txt").exists():
            inner, own = _lowered(library, _from_vocabulary(library, folder), folder)
            return cls(inner, path.name, _companions(folder) if own else {})
        if not file.is_file():
            raise DataError(
                "a tokenizer must be a tokenizer.json, or a folder that holds one or a vocab.txt",
                got=f"{path}, which {'holds neither' if path.is_dir() else 'does not exist'}",
                cure="use the folder of the model it belongs to",
            )
        try:
            stored = file.read_bytes()
            inner = library.Tokenizer.from_str(stored.decode())
        except Exception as error:   # the library raises plain Exception
            raise DataError(
                f"{file.name} cannot be read as a tokenizer", got=f"{error!s:.120}", cure="copy the file again"
            ) from error
        inner, own = _lowered(library, inner, folder) if path.is_dir() else (inner, True)
        return cls(inner, path.name, {**_companions(file.parent), "tokenizer.json": stored} if own else {})

    @checked
    def save(self, path: Path | str) -> None:
        """Write ``tokenizer.json`` atomically; ``path`` is that file or its folder, which also gets all :attr:`files`.

        A tokenizer that was opened is written as it was stored.
        """
        path = Path(path)
        files = {"tokenizer.json": self._inner.to_str(pretty=True).encode(), **self.files}
        if path.suffix == ".json":
            path, files = path.parent, {path.name: files["tokenizer.json"]}
        for name, content in files.items():
            with replacing(path / name) as file:
                file.write(content)

    def store(self, folder: Path) -> None:
        """Write to a run folder what :meth:`open` reads again: tokenizer.json, and its other files as one.

        Both are overwritten, so that nothing of an earlier tokenizer is left.
        """
        bundle = {name: part.decode("latin-1") for name, part in self.files.items() if name in _COMPANIONS}
        if bundle or (folder / BUNDLE).exists():
            write_json(folder / BUNDLE, bundle)
        self.save(folder / "tokenizer.json")

    @property
    def vocabulary(self) -> int:
        """The number of ids, including special tokens: every id is below it."""
        ids: list[int] = list(self._inner.get_vocab(with_added_tokens=True).values())
        return max(ids) + 1

    @property
    def pad(self) -> int:
        """The id of the padding token; 0 if there is none, because the mask hides padding anyway."""
        return self._find("pad") or 0

    @property
    def mask(self) -> int:
        """The id of [MASK] or its equivalent."""
        return self._must_find("mask")

    @property
    def cls(self) -> int:
        """The id of [CLS] or its equivalent, the first token of a text."""
        return self._must_find("cls")

    @property
    def sep(self) -> int:
        """The id of [SEP] or its equivalent, the last token of a text."""
        return self._must_find("sep")

    @property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens, which are never masked or predicted."""
        added = self._inner.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    @checked
    def encode(self, texts: Sequence[str], length: int) -> tuple[Ids, Bools]:
        """Return the ids, int32 [n, L], and a mask, bool [n, L], that is False for padding.

        L is the length of the longest text, rounded up to a multiple of 8, but at most ``length``.
        """
        flat, offsets = self.flat(texts, length)
        sizes = np.diff(offsets)
        longest = int(sizes.max(initial=1))
        mask = np.arange(min(-(-longest // _MULTIPLE) * _MULTIPLE, length)) < sizes[:, None]
        ids = np.full(mask.shape, self.pad, np.int32)
        ids[mask] = flat
        return ids, mask

    @checked
    def flat(self, texts: Iterable[str], length: int | None = None) -> tuple[Ids, Integers]:
        """Return all ids concatenated, int32, and offsets, int64 [n + 1]: text i is ``ids[offsets[i]:offsets[i + 1]]``.

        Texts are truncated to ``length`` if given. A corpus is held in memory this way, without padding.
        """
        least = self._inner.num_special_tokens_to_add(False) + 1
        if length is not None and length < least:
            rule = f"length must leave room for the {least - 1} special tokens and one more"
            raise DataError(rule, got=length, cure=f"use {least} or more")
        self._inner.no_truncation() if length is None else self._inner.enable_truncation(length)
        parts, sizes = [np.empty(0, np.int32)], [0]
        for batch in _batches(_checked_texts(texts)):
            for encoding in self._inner.encode_batch_fast(batch):
                ids = encoding.ids
                parts.append(np.array(ids, np.int32))
                sizes.append(len(ids))
        return np.concatenate(parts), np.cumsum(sizes, dtype=np.int64)

    @checked
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ``ids`` without special tokens, normalised by the tokenizer (for example lowercased)."""
        if np.ndim(ids) != 1 or (len(ids) and not 0 <= min(ids) <= max(ids) < 2**32):
            raise DataError("ids must be integers from 0", got=shown(ids), cure="pass one row of encode")
        text: str = self._inner.decode([int(id) for id in ids], skip_special_tokens=True)
        return text

    def __repr__(self) -> str:
        return f"Tokenizer({self.source!r}, {self.vocabulary:,} ids)"

    def _find(self, role: str) -> int | None:
        ids = map(self._inner.token_to_id, _SPELLINGS[role])
        return next((id for id in ids if id is not None), None)

    def _must_find(self, role: str) -> int:
        id = self._find(role)
        if id is None:
            raise DataError(
                f"this needs a tokenizer with a {role} token, one of {', '.join(_SPELLINGS[role])}",
                got=f"none in {self.source}",
                cure="train one with Tokenizer.train(texts), or open that of a BERT model",
            )
        return id


def _checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield ``texts``, of which there may be more than memory holds."""
    for row, text in enumerate(texts):
        if not isinstance(text, str) or (not text.isascii() and text.encode(errors="ignore").decode() != text):
            raise DataError(f"item {row} must be a string of valid Unicode", got=shown(text, 40), cure="convert it")
        yield text


def _letters(inner: Any, texts: Iterable[str], most: int) -> list[str]:
    """Return the most frequent letters of ``texts`` after normalisation, sorted."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for letter, count in raw.items():   # BERT's normaliser treats letters independently
        for normal in inner.normalizer.normalize_str(letter):
            counts[normal] += count if not normal.isspace() else 0
    common = sorted(counts, key=lambda letter: (-counts[letter], letter))[:most]
    return sorted(letter for letter in common if counts[letter])


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Split ``texts`` into lists, large enough for all processors and small enough for memory."""
    source = iter(texts)
    while batch := list(islice(source, _BATCH)):
        yield batch


def _library() -> Any:
    with MissingExtra.unless_installed("tokenizers", "text"):
        import tokenizers
    return tokenizers


def _word_piece(library: Any, lowercase: bool, vocabulary: dict[str, int] | None = None, **normal: Any) -> Any:
    """Return the tokenizer of BERT without special tokens around the text, because their ids may be unknown."""
    model = library.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    inner = library.Tokenizer(model)
    inner.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase, **normal)
    inner.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    inner.decoder = library.decoders.WordPiece()
    return inner


def _surrounded(library: Any, inner: Any) -> Any:
    """Return ``inner`` with the special tokens of BERT: [CLS] before each text and [SEP] after it."""
    inner.add_special_tokens(list(_BERT))
    ends = [(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    inner.post_processor = library.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return inner


def _home(folder: Path) -> Path:
    """Return the folder that holds the tokenizer: in older sentence-transformers folders, that of the first module."""
    first = read_json(folder / "modules.json", list, default=[])[:1]
    inside = folder / str(first[0].get("path", "")) if first and isinstance(first[0], dict) else folder
    return inside if any((inside / name).exists() for name in ("tokenizer.json", "vocab.txt")) else folder


def _companions(folder: Path) -> dict[str, bytes]:
    """Return the files of a tokenizer beside its tokenizer.json; in a run folder they are in one file."""
    bundle = read_json(folder / BUNDLE, dict, default=None)
    if bundle is not None:
        return {name: str(bundle[name]).encode("latin-1", "replace") for name in _COMPANIONS if name in bundle}
    return {name: path.read_bytes() for name in _COMPANIONS if (path := folder / name).is_file()}


def _lowered(library: Any, inner: Any, folder: Path) -> tuple[Any, bool]:
    """Lowercase before ``inner`` if sentence-transformers is configured to do so and the tokenizer does not.

    Also returns whether the tokenizer is still that of the folder.
    """
    lowercase = read_json(folder / "sentence_bert_config.json", dict, default={}).get("do_lower_case")
    own = inner.normalizer
    if lowercase and (own is None or own.normalize_str("A") != "a"):
        lower = library.normalizers.Lowercase()
        inner.normalizer = lower if own is None else library.normalizers.Sequence([lower, own])
        return inner, False
    return inner, True


def _from_vocabulary(library: Any, folder: Path) -> Any:
    """Return the tokenizer of BERT from a ``vocab.txt`` (one piece per line) and ``tokenizer_config.json``."""
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece.rstrip("\r"): id for id, piece in enumerate(pieces) if piece}
    missing = [token for token in _BERT if token not in vocabulary]
    if missing:
        raise DataError(
            "vocab.txt must contain the special tokens of BERT",
            got=f"no {missing[0]}",
            cure="use a folder with a tokenizer.json",
        )
    config = read_json(folder / "tokenizer_config.json", dict, default={})
    lowercase, accents = bool(config.get("do_lower_case", True)), config.get("strip_accents")
    normal = {
        "strip_accents": None if accents is None else bool(accents),
        "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
    }
    return _surrounded(library, _word_piece(library, lowercase, vocabulary, **normal))

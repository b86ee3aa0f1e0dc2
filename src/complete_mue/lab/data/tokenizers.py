"""Text to token ids and back: bytes, or any Hugging Face ``tokenizer.json``.

Documents come as UTF-8 bytes; every document ends with the end-of-text token. Text that spells a special token is
encoded as text, so no document can forge an end.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import FileError
from complete_mue.lab.data.extras import in_our_words, need
from complete_mue.lab.data.text_files import PACKED, unpacked
from complete_mue.storage import read_bytes

BYTES = "bytes"
END_OF_TEXT = 256
_USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")

_CANNOT_ENCODE = "the tokenizer cannot encode this text; give one that knows every character"

Encoded = tuple[NDArray[np.int64], NDArray[np.uint32]]


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes are the ids; 256 ends a document."""

    name: str = BYTES
    sha256: str = hashlib.sha256(b"complete_mue bytes, end of text 256").hexdigest()  # of what decides the ids
    vocab: int = END_OF_TEXT + 1  # largest id + 1
    end_of_text: int = END_OF_TEXT

    def encode(self, text: str) -> list[int]:
        """Bytes of the text; what UTF-8 cannot hold becomes a question mark."""
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes, with U+FFFD where they are not UTF-8."""
        return bytes(i for i in ids if 0 <= i < END_OF_TEXT).decode("utf-8", errors="replace")

    def documents(self, texts: Sequence[bytes]) -> Encoded:
        """Documents one after another, each with its end: (tokens of each, all tokens)."""
        lengths = np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts))
        tokens = np.frombuffer(b"\0".join([*texts, b""]), np.uint8).astype(np.uint32)
        tokens[np.cumsum(lengths) - 1] = END_OF_TEXT
        return lengths, tokens


class JsonTokenizer:
    """A Hugging Face ``tokenizer.json``, plain or packed (.gz, .xz, .bz2), by the ``tokenizers`` library.

    Its BPE dropout, if it has one, is left out: the same text always has the same ids. ``dropout`` says what it was.
    """

    def __init__(self, path: str | Path, *, name: str | None = None, end_of_text: str | None = None) -> None:
        path = Path(path)
        if path.suffix.lower() in PACKED:
            with unpacked(path) as (_, file):
                self.content = file.read()
            name = name or path.stem
        else:
            self.content = read_bytes(path, "give the path of a tokenizer.json")
        library = need("tokenizers", f"the tokenizer {path}")
        with in_our_words(f"{path}: not a Hugging Face tokenizer.json"):
            self._tokenizer: Any = library.Tokenizer.from_str(self.content.decode("utf-8"))
        self.dropout: float = getattr(self._tokenizer.model, "dropout", None) or 0.0
        if self.dropout:
            self._tokenizer.model.dropout = None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self.name = name or path.name
        self.vocab = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        ends = (end_of_text,) if end_of_text else _USUAL_ENDS
        found = next((end for end in ends if self._tokenizer.token_to_id(end) is not None), None)
        if found is None:
            added = self._tokenizer.get_added_tokens_decoder().values()
            special = ", ".join(repr(token.content) for token in added if token.special)
            raise FileError(
                f"{path}: has no end-of-text token {' or '.join(map(repr, ends))}; its special tokens are "
                f"{special or 'none'}: give one of its tokens as end_of_text"
            )
        self.end: str = found
        self.end_of_text: int = self._tokenizer.token_to_id(found)
        self.sha256 = hashlib.sha256(self.content + b"\0" + self.end.encode("utf-8")).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        with in_our_words(f"{self.name}: {_CANNOT_ENCODE}"):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        with in_our_words(f"{self.name}: the tokenizer cannot turn ids into text"):
            return str(self._tokenizer.decode([int(i) for i in ids if 0 <= i < self.vocab], skip_special_tokens=True))

    def documents(self, texts: Sequence[bytes]) -> Encoded:
        """One batch through the library, ends appended."""
        decoded = [text.decode("utf-8") for text in texts]
        with in_our_words(f"{self.name}: {_CANNOT_ENCODE}"):
            encoded = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        parts = [np.array([*one.ids, self.end_of_text], np.uint32) for one in encoded]
        lengths = np.fromiter((len(part) for part in parts), np.int64, len(parts))
        return lengths, np.concatenate(parts) if parts else np.zeros(0, np.uint32)


Tokenizer = ByteTokenizer | JsonTokenizer


def load_tokenizer(name: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """``"bytes"``, the path of a ``tokenizer.json`` or of a folder with one, or a name on the Hugging Face hub."""
    if str(name) == BYTES:
        if end_of_text is not None:
            raise FileError(f"end_of_text = {end_of_text!r} with the byte tokenizer: its end is 256; leave it out")
        return ByteTokenizer()
    path = Path(name)
    if path.is_dir():
        return JsonTokenizer(path / "tokenizer.json", name=path.name, end_of_text=end_of_text)
    if path.is_file() or path.suffix == ".json" or str(name).count("/") > 1 or str(name).startswith((".", "/", "~")):
        return JsonTokenizer(path.expanduser(), end_of_text=end_of_text)
    hub = need("huggingface_hub", f"the tokenizer {str(name)!r} from the hub")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; ours is the one line that counts
    advice = 'give "bytes", the path of a tokenizer.json, or a hub name such as EleutherAI/gpt-neox-20b'
    with in_our_words(f"tokenizer {str(name)!r}: no such file here, and it cannot be fetched from the hub", advice):
        file = hub.hf_hub_download(str(name), "tokenizer.json")
    return JsonTokenizer(file, name=str(name), end_of_text=end_of_text)

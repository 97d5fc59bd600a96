"""The built-in model: a two-layer Qwen3 with random weights and a byte-level tokenizer, built in seconds.

It exists so that the whole path can be tried and tested by a real engine where no hub can be reached.
Its answers are noise.
"""

import json
import random
import shutil
from pathlib import Path
from tempfile import mkdtemp

import structlog

log = structlog.get_logger()

BUILD = "2"
"""Part of the folder's name: changes when the same code would build another model."""

VOCABULARY_TOKENS = 2048
CONTEXT_TOKENS = 4096
HIDDEN_SIZE = 128
LAYERS = 2
HEADS, KV_HEADS, HEAD_SIZE = 2, 1, 64
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CORPUS_SENTENCES = 8_000
WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you all her she there would their we him been has when who will no more if out so up said what its about
than into them can only other time new some could two may first then do any like answer question summarize
translate classify json name value true false null string number object
"""


def build_tiny_model(folder: Path) -> Path:
    """The model's folder below `folder`, built when it is not there; safe with several at once."""
    target = folder / f"tiny-{BUILD}"
    if (target / "config.json").is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=".tiny-", dir=folder))
    try:
        _write_tokenizer(partial)
        _write_weights(partial)
        try:
            partial.rename(target)
        except OSError:
            # Another process was first, with the same result.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("tiny_model_built", folder=str(target))
    return target


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = Path(__file__).with_name("tiny_chat_template.jinja").read_text(encoding="utf-8")
    wrapped.save_pretrained(folder)


def _corpus() -> list[str]:
    """Sentences of made-up words, the same each time, for the tokenizer to learn merges from."""
    chance = random.Random(0)  # noqa: S311
    consonants, vowels = "bcdfghklmnprstvw", "aeiou"
    words = [
        "".join(chance.choice(consonants) + chance.choice(vowels) for _ in range(chance.randint(1, 3)))
        for _ in range(1500)
    ]
    words += WORDS.split()
    return [
        " ".join(chance.choice(words) for _ in range(chance.randint(4, 16))).capitalize()
        + chance.choice([". ", "? ", "! ", ":\n", ", "])
        + json.dumps({chance.choice(words): chance.randint(0, 9999)})
        for _ in range(CORPUS_SENTENCES)
    ]


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    end_of_turn, end_of_text = SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")
    config = Qwen3Config(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=HIDDEN_SIZE * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_turn,
        pad_token_id=SPECIAL_TOKENS.index("<|pad|>"),
        dtype="float32",
    )
    # The same weights each time, without touching the process's own random numbers.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    generation = {"eos_token_id": [end_of_turn, end_of_text], "pad_token_id": config.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")

"""Text of others on a terminal."""


def printable(text: str) -> str:
    """The text without what would move the cursor or change colours."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\ufffd" for character in text
    )

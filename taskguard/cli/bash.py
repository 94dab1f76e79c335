"""Completion for bash, which splits words at colons: every key and every URL has one."""

from __future__ import annotations

import os
import re

from click.shell_completion import BashComplete, CompletionItem, split_arg_string

_SOURCE = """\
%(complete_func)s() {
    local answer
    while IFS= read -r answer; do
        case "$answer" in
            dir,*) COMPREPLY=(); compopt -o dirnames ;;
            file,*) COMPREPLY=(); compopt -o default ;;
            plain,*) COMPREPLY+=("${answer#plain,}") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1" 2> /dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_UNSAFE = re.compile(r"([^\w@%+=:,./-])")


class Bash(BashComplete):
    """Splits the line itself, and completes only what follows the last break in the word."""

    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        is_new = not words or line[-1:].isspace()
        self._rest = len(self._head("" if is_new else words[-1]))
        return (words, "") if is_new else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        # Quoted: a key can contain anything, including what a shell would run.
        value = _UNSAFE.sub(r"\\\1", item.value[self._rest :])
        return f"{item.type},{value}"

    def _head(self, word: str) -> str:
        """The beginning of the word that bash keeps."""
        breaks = [letter for letter in ":=@" if letter in os.environ.get("COMP_WORDBREAKS", "")]
        return word[: max((word.rfind(letter) for letter in breaks), default=-1) + 1]

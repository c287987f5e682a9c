"""derts completion"""

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from derts.commands.parse import parse, without_colours
from derts.config import BACKBONES, TrainConfig
from derts.config_file import PRESETS, annotations_of

ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
BASH = """# completion of derts for bash; written by: derts completion bash
_derts() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
  esac
  if [[ "$words" && "$current" != -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{cases}
  esac
  # an option begins with a dash; all else that follows a command is a file
  if [[ "$words" != --* ]] || [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _derts derts
"""


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that lets your shell complete derts commands and their options.

    Examples:
      derts completion bash > ~/.local/share/bash-completion/completions/derts
      derts completion zsh > ~/.derts.zsh            (and "source ~/.derts.zsh" in your .zshrc)
      derts completion fish > ~/.config/fish/completions/derts.fish
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]
    """bash, zsh or fish."""


def completion(arguments: Sequence[str]) -> None:
    """Parse, print."""
    shell = parse(CompletionOptions, arguments, "completion").shell
    commands = command_options()
    script = fish_script(commands) if shell == "fish" else bash_script(commands)
    print(ZSH + script if shell == "zsh" else script, end="")  # zsh runs bash's completion


def command_options() -> dict[str, list[str]]:
    """The options of every command, as its own help names them."""
    from derts.cli import COMMANDS

    found = {}
    for name, (place, _) in COMMANDS.items():
        module, function = place.split(":")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            getattr(importlib.import_module(module), function)(["--help"])
        # an option begins a line or a column of the help's boxes
        plain = without_colours(said.getvalue())
        options = re.findall(r"(?:[│|] |  )(?:-\w[^-\n]*, )?(--[a-z][a-z0-9.-]*)", plain)
        found[name] = sorted({option for option in options if not option.startswith("--no-")})
    return found


def option_values(kind: Any = TrainConfig, path: str = "--") -> dict[str, list[str]]:
    """What may follow an option, where that is one of a few words."""
    found: dict[str, list[str]] = {}
    for name, hint in annotations_of(kind).items():
        option = path + name.replace("_", "-")
        if is_dataclass(hint):
            found |= option_values(hint, f"{option}.")
        elif get_origin(hint) is Literal:
            found[option] = list(get_args(hint))
    if path == "--":
        found |= {"--preset": list(PRESETS), "--engine": ["greedy", "lazy", "stochastic"]}
        found["--model.backbone"] = [*BACKBONES, "efficientnet-lite0"]
        found["--split"] = found["--evaluation.split"] = ["train", "val", "test"]
        found["--noise"] = ["symmetric", "pair"]
    return found


def bash_script(commands: dict[str, list[str]]) -> str:
    """For bash's complete."""
    following: dict[str, list[str]] = {"  ": []}  # what may follow the words typed so far
    for name, options in commands.items():
        first, *second = name.split()
        following["  "].append(first)
        if second:
            following.setdefault(f" {first} ", []).extend(second)
        following[f" {name} *"] = options
    cases = [
        f"    {'*'.join(shlex.quote(part) if part else '' for part in words.split('*'))}) "
        f'words="{" ".join(sorted(set(found)))}";;'
        for words, found in following.items()
    ]
    values = [f'    {option}) words="{" ".join(of)}";;' for option, of in option_values().items()]
    return BASH.format(cases="\n".join(cases), values="\n".join(values))


def fish_script(commands: dict[str, list[str]]) -> str:
    """For fish, a line per word."""
    lines = ["# completion of derts for fish; written by: derts completion fish"]
    values = option_values()
    for name, options in commands.items():
        first, *second = name.split()
        lines.append(f"complete -c derts -n __fish_use_subcommand -a {first}")
        seen = f"complete -c derts -n '__fish_seen_subcommand_from {first}'"
        lines += [f"{seen} -a {word}" for word in second]
        seen = seen.replace(first, name.split()[-1])
        for option in options:
            of = f" -x -a '{' '.join(values[option])}'" if option in values else ""
            lines.append(f"{seen} -l {option[2:]}{of}")
    return "\n".join(dict.fromkeys(lines)) + "\n"

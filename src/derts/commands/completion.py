"""derts completion"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from derts.config import BACKBONES
from derts.config_file import PRESETS

SPLITS = ("train", "val", "test")
WORDS = {  # of options that take others as well
    "--preset": tuple(PRESETS),
    "--model.backbone": (*BACKBONES, "efficientnet-lite0"),
    "--split": SPLITS,
    "--evaluation.split": SPLITS,
    "--noise": ("symmetric", "pair"),
}
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
BASH = """# completion of derts for bash; written by: derts completion bash
_derts() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  local typed=" ${{COMP_WORDS[*]:1:COMP_CWORD-1}} "
  # an option begins with a dash; all else that follows a command is a value or a file
  [[ "$current" == -* ]] && typed+="-"
  case "$typed" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
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


def completion(options: CompletionOptions) -> None:
    script = fish_script() if options.shell == "fish" else bash_script()
    print(ZSH + script if options.shell == "zsh" else script, end="")  # zsh runs bash's completion


def command_options() -> dict[str, dict[str, list[str]]]:
    """Of every command its options, each with the words that may follow it, if they are few."""
    from derts.cli import COMMANDS, command_of

    return {name: {**dict(_options(command_of(name)[1])), "--help": []} for name in COMMANDS}


def _options(kind: Any, path: str = "--") -> Iterator[tuple[str, list[str]]]:
    for field_name, hint in get_type_hints(kind, include_extras=True).items():
        hint, *about = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if tyro.conf.Positional in about:
            continue
        given = [one.name for one in about if getattr(one, "name", None) is not None]
        name = path + (given[0] if given else field_name.replace("_", "-"))
        if is_dataclass(hint):
            yield from _options(hint, path if name == path else f"{name}.")
        else:
            yield name, list(get_args(hint) if get_origin(hint) is Literal else WORDS.get(name, ()))


def bash_script() -> str:
    cases: dict[str, list[str]] = defaultdict(list)  # by a pattern for what is typed so far
    for name, options in command_options().items():
        first, *second = name.split()
        cases['"  "'].append(first)
        cases[f'" {first} "'] += second
        cases[f'" {name} "*-'] = list(options)
        cases |= {f'*" {option} "': words for option, words in options.items()}
    lines = [
        f'    {pattern}) words="{" ".join(dict.fromkeys(words))}";;'
        for pattern, words in cases.items()
        if words
    ]
    return BASH.format(cases="\n".join(lines))


def fish_script() -> str:
    lines = ["# completion of derts for fish; written by: derts completion fish"]
    for name, options in command_options().items():
        first, *second = name.split()
        lines.append(f"complete -c derts -n __fish_use_subcommand -a {first}")
        seen = f"complete -c derts -n '__fish_seen_subcommand_from {first}'"
        lines += [f"{seen} -a {word}" for word in second]
        seen = seen.replace(first, name.split()[-1])
        for option, words in options.items():
            of = f" -x -a '{' '.join(words)}'" if words else ""
            lines.append(f"{seen} -l {option[2:]}{of}")
    return "\n".join(dict.fromkeys(lines)) + "\n"

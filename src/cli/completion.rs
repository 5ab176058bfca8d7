//! Completions of shells: clap's own, which know no plan and no container, with these added.

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_complete::aot::generate;

use super::command;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct CompletionArgs {
    /// The shell: bash, zsh or fish
    #[arg(required_unless_present = "words", value_parser = shells())]
    pub shell: Option<String>,
    /// Print the words that a script asks for
    #[arg(long, hide = true, conflicts_with = "shell")]
    pub words: Option<Words>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Words {
    /// Stored plans
    Plans,
    /// Ids of containers that hold NICs, and their names
    Holders,
}

fn shells() -> [&'static str; 3] {
    ["bash", "zsh", "fish"]
}

/// What a shell calls for them.
fn asking(words: Words) -> String {
    let name = match words {
        Words::Plans => "plans",
        Words::Holders => "holders",
    };
    format!("rdmaprep completion --words {name} 2>/dev/null")
}

/// Options and arguments that are plans or containers, as scripts name them.
const OPTIONS: [(&str, Words); 2] = [("plan", Words::Plans), ("container", Words::Holders)];

/// The script for a shell; none for one that is not known.
pub fn script(shell: &str) -> Option<String> {
    let (kind, with_words): (Shell, fn(&str) -> String) = match shell {
        "bash" => (Shell::Bash, bash),
        "zsh" => (Shell::Zsh, zsh),
        "fish" => (Shell::Fish, fish),
        _ => return None,
    };
    let mut text = Vec::new();
    generate(kind, &mut command(), "rdmaprep", &mut text);
    Some(with_words(&String::from_utf8(text).ok()?))
}

/// Behind `--plan)` stands `COMPREPLY=($(compgen -f "${cur}"))`; behind `COMMAND)` stands `opts`,
/// with what may come next.
fn bash(script: &str) -> String {
    const FILES: &str = "$(compgen -f \"${cur}\")";
    let (mut text, mut words, mut command) = (String::new(), None, "");
    for line in script.lines() {
        let case = line.trim().strip_suffix(')').unwrap_or_default();
        if let Some(option) = case.strip_prefix("--") {
            words = OPTIONS.iter().find(|(name, _)| option == *name);
        } else if case.starts_with("rdmaprep") {
            command = case;
        }
        let mut line = line.to_owned();
        if line.contains(FILES) {
            if let Some((_, words)) = words.take() {
                let asked = asking(*words);
                let asked = format!("$(compgen -W \"$({asked})\" -- \"${{cur}}\")");
                line = line.replace(FILES, &asked);
            }
        }
        let argument = ARGUMENTS.iter().find(|(of, ..)| is_of(command, of));
        if let (Some((.., words)), Some(opts)) = (argument, line.strip_suffix('"')) {
            if opts.trim_start().starts_with("opts=") {
                line = format!("{opts} $({})\"", asking(*words));
            }
        }
        text += &line;
        text.push('\n');
    }
    text
}

/// `rdmaprep__subcmd__plan__subcmd__show` is `plan show`.
fn is_of(case: &str, command: &[&str]) -> bool {
    case.split("__subcmd__").skip(1).eq(command.iter().copied())
}

/// Arguments of commands: the command, how zsh calls them, the words.
const ARGUMENTS: [(&[&str], &str, Words); 3] = [
    (&["restore"], "'::id -- ", Words::Holders),
    (&["plan", "show"], "':name -- ", Words::Plans),
    (&["plan", "delete"], "'*::names -- ", Words::Plans),
];

fn zsh(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let words = OPTIONS.iter().find(|(name, _)| {
            let option = line.trim_start().trim_start_matches(['\'', '(']);
            option.contains(&format!("--{name}=["))
        });
        let words = words.map(|(_, words)| words);
        let arguments = ARGUMENTS.iter().find(|(_, name, _)| line.starts_with(name));
        let line = match words.or(arguments.map(|(.., words)| words)) {
            Some(words) => line.replace(":_default'", &format!(":($({}))'", asking(*words))),
            None => line.to_owned(),
        };
        text += &line;
        text.push('\n');
    }
    text
}

fn fish(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        text += line;
        let words = OPTIONS
            .iter()
            .find(|(name, _)| line.contains(&format!(" -l {name} ")));
        if let Some((_, words)) = words {
            text += &format!(" -f -a '({})'", asking(*words));
        }
        text.push('\n');
    }
    for (command, _, words) in ARGUMENTS {
        let seen = command
            .iter()
            .map(|word| format!("__fish_seen_subcommand_from {word}"));
        let seen = seen.collect::<Vec<_>>().join("; and ");
        let asked = asking(words);
        text += &format!("complete -c rdmaprep -n \"{seen}\" -f -a '({asked})'\n");
    }
    text
}

//! The help of every command: one line for each flag, the global options once, the exit codes.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory};
use rdma_model::error_class::ErrorClass;

use super::Cli;

/// The whole command, with the exit codes in its help. `-h` and `--help` print the same: one line
/// for each flag.
pub fn command() -> clap::Command {
    let whole = manual();
    let global: Vec<Arg> = whole
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .cloned()
        .collect();
    brief(whole).mut_subcommands(|below| without_global(below, &global))
}

/// The whole command with its long texts, for manual pages.
pub fn manual() -> clap::Command {
    // Help is documentation: it shows the variable's name, not what happens to be in it.
    fn quiet(command: clap::Command) -> clap::Command {
        command
            .mut_args(|a| a.hide_env_values(true))
            .mut_subcommands(quiet)
    }
    quiet(Cli::command()).after_help(format!("{}\n\n{PAGES}", exit_codes()))
}

/// What a command does below its first line, and a line for each flag. clap gives a flag three
/// lines once any text is long.
fn brief(mut command: clap::Command) -> clap::Command {
    if let Some(long) = command.get_long_about().map(ToString::to_string) {
        if let Some((_, rest)) = long.split_once("\n\n") {
            command = command.before_help(rest.to_owned());
        }
        command = command.long_about(None);
    }
    command
        .help_template(HELP)
        .mut_args(one_line)
        .mut_subcommands(brief)
}

const HELP: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// What a flag does, then its default and its variable.
fn one_line(arg: Arg) -> Arg {
    let Some(mut help) = arg.get_help().map(ToString::to_string) else {
        return arg;
    };
    let has_number = arg.get_num_args().is_none_or(|n| n.takes_values());
    let (sets, takes_value) = (
        arg.get_action().takes_values(),
        arg.get_action().takes_values() && has_number,
    );
    for value in arg.get_default_values().iter().filter(|_| takes_value) {
        help += &format!(" [default: {}]", value.to_string_lossy());
    }
    if let Some(variable) = arg.get_env() {
        // A flag that unsets: `--no-nccl-topo` is `INCLUDE_NCCL_TOPO=0`.
        let value = if sets && !takes_value { "=0" } else { "" };
        help += &format!(" [${}{value}]", variable.to_string_lossy());
    }
    let arg = arg.help(help).long_help(None).hide_env(true);
    if takes_value {
        arg.hide_default_value(true).hide_possible_values(true)
    } else {
        arg
    }
}

/// The command with a help that names the global options in one line.
fn without_global(command: clap::Command, global: &[Arg]) -> clap::Command {
    let pointer = "Global options: rdmaprep --help";
    let text = command
        .get_after_help()
        .map_or_else(|| pointer.to_owned(), |text| format!("{text}\n\n{pointer}"));
    // clap hands down an option unless the command has it.
    let hidden = global.iter().map(|arg| arg.clone().hide(true));
    command
        .args(hidden)
        .after_help(text)
        .mut_subcommands(|below| without_global(below, global))
}

/// What is wrong with a command line, in one line like every error; nothing if clap shows help or
/// the version.
pub fn complaint(error: &clap::Error) -> Option<String> {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
    };
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    if let Some(text) = elsewhere(error) {
        return Some(text);
    }
    let text = error.to_string();
    let lines = text
        .lines()
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"));
    let words = lines
        .map(str::trim)
        // What looks like an option is rarely meant as a value.
        .filter(|l| !l.is_empty() && !l.starts_with("tip: to pass"))
        .collect::<Vec<_>>()
        .join(" ");
    Some(format!(
        "{}; see --help",
        words.strip_prefix("error: ").unwrap_or(&words)
    ))
}

/// Of a subcommand that another one has.
fn elsewhere(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let all = Cli::command();
    let with = all
        .get_subcommands()
        .filter(|c| c.find_subcommand(word).is_some());
    let names: Vec<String> = with
        .map(|c| format!("`rdmaprep {} {word}`", c.get_name()))
        .collect();
    let meant = names.join(" or ");
    (!names.is_empty()).then(|| format!("unrecognized subcommand '{word}': did you mean {meant}?"))
}

/// Where the packages put them. A path-exclude of dpkg can keep them out.
const PAGES: &str =
    "The pages that help names, such as docs/recovery.md, are in /usr/share/doc/rdmaprep.";

fn exit_codes() -> String {
    let mut text = "Exit codes:\n  0  done".to_owned();
    for class in ErrorClass::ALL {
        text += &format!("\n  {}  {}", class.code(), class.meaning());
    }
    text
}

//! The help of every command: one line for each flag, the global options once, the exit codes.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};
use rdma_model::error_class::ErrorClass;
use rdma_model::escape::count;

use super::Cli;

/// Commands by who calls them.
pub const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Set up",
        &[
            "install",
            "uninstall",
            "prepare",
            "plan",
            "env",
            "cdi",
            "hold",
        ],
    ),
    (
        "Look, and repair",
        &[
            "status", "doctor", "restore", "metrics", "snapshot", "topo", "sysfs",
        ],
    ),
    ("Jobs", &["nccl", "job-status", "test-rails", "claims"]),
    (
        "For engines and scripts",
        &["hook", "spec", "runtime", "cni", "handle"],
    ),
    ("Shell", &["completion", "help"]),
];

/// The whole command, with the exit codes in its help: one line for each flag.
pub fn command() -> clap::Command {
    let whole = manual();
    let global: Vec<Arg> = whole
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .cloned()
        .collect();
    let whole = brief(whole).mut_subcommands(|below| without_global(below, &global));
    let list = grouped(&whole);
    let template = format!("{ABOUT}{list}\nOptions:\n{{options}}{{after-help}}");
    whole.help_template(template)
}

/// With what `-h` shows: neither exit codes nor what few need. For clap, both differ in layout too,
/// so it is given another command.
pub fn short() -> clap::Command {
    let whole = command().mut_subcommands(shortened);
    whole.after_help("Exit codes: rdmaprep --help. Of a command: rdmaprep COMMAND --help")
}

fn hidden_if_long(arg: Arg) -> Arg {
    match is_long(&arg) {
        true => arg.hide(true),
        false => arg,
    }
}

fn shortened(command: clap::Command) -> clap::Command {
    let left_out = command.get_arguments().filter(|arg| is_long(arg)).count();
    if left_out == 0 {
        return command.mut_subcommands(shortened);
    }
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let more = format!("{} more: --help", count(left_out, "option"));
    command
        .after_help(text.replace(POINTER, &more))
        .mut_args(hidden_if_long)
        .mut_subcommands(shortened)
}

/// The list of commands.
fn grouped(whole: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("{title}:\n");
        for name in names {
            let about = match *name {
                "help" => Some("Print this, or the help of a command".to_owned()),
                name => whole
                    .find_subcommand(name)
                    .and_then(|command| Some(command.get_about()?.to_string())),
            };
            text += &format!("  {name:11} {}\n", about.unwrap_or_default());
        }
    }
    text
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

const POINTER: &str = "Global options: rdmaprep --help";

const ABOUT: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n";
const HELP: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Of the options that have a heading, those that `-h` shows.
const SHORT: [&str; 5] = ["ifaces", "hca", "exclude", "libraries", "rendezvous"];

/// Whether `-h` leaves it out.
fn is_long(arg: &Arg) -> bool {
    let is_grouped = arg.get_help_heading().is_some() && !arg.is_global_set();
    let is_named = SHORT.contains(&arg.get_id().as_str());
    is_grouped && !is_named && !arg.is_hide_set()
}

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
    let text = command
        .get_after_help()
        .map_or_else(|| POINTER.to_owned(), |text| format!("{text}\n\n{POINTER}"));
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
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    if let Some(text) = elsewhere(error).or_else(|| misspelt(error)) {
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

/// What is not there, and what may be meant.
fn misspelt(error: &clap::Error) -> Option<String> {
    let (kind, wrong, meant) = match error.kind() {
        ErrorKind::UnknownArgument => ("", ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidSubcommand => (
            "command ",
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
        _ => return None,
    };
    let wrong = words(error, wrong)?;
    let meant = words(error, meant).or_else(|| of_another_command(&wrong));
    let question = meant.map(|meant| format!("; did you mean {meant}?"));
    let question = question.unwrap_or_else(|| "; see --help".to_owned());
    Some(format!("there is no {kind}{wrong}{question}"))
}

fn words(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        // The nearest one comes last.
        ContextValue::Strings(words) => words.last().cloned(),
        _ => None,
    }
}

/// An option before the command whose it is.
fn of_another_command(option: &str) -> Option<String> {
    let name = option.strip_prefix("--")?;
    let all = Cli::command();
    let mut with = all.get_subcommands().filter(|c| !c.is_hide_set());
    let with = with.find(|c| c.get_arguments().any(|arg| arg.get_long() == Some(name)))?;
    Some(format!("`rdmaprep {} {option}`", with.get_name()))
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

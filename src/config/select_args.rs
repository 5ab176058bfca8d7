//! What a command line and its environment say of the [`SelectOptions`]: read as text, and parsed
//! when it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::marker::PhantomData;
use std::ops::Deref;

use anyhow::{Result, anyhow};
use clap::builder::{Resettable, StringValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::config::options::{SelectOptions, boolean};

/// The texts of flags and variables, by the option's field. A bad one fails nothing before
/// [`SelectOptions::merge`]: the hook runs for containers that never asked for a NIC as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectArgs {
    texts: BTreeMap<String, String>,
    /// Which of them the command line itself has; the others are of variables, which may be there
    /// for another command.
    given: BTreeSet<String>,
}

pub trait Unused {
    const OPTIONS: &'static [&'static str];
}

#[derive(Clone, Debug)]
pub struct SelectArgsBut<U>(SelectArgs, PhantomData<U>);

impl SelectArgs {
    /// With that text for an option, as if a flag had said it.
    pub fn with(&self, option: &str, text: &str) -> SelectArgs {
        let mut args = self.clone();
        args.texts.insert(option.to_owned(), text.to_owned());
        args
    }

    pub fn without(&self, option: &str) -> SelectArgs {
        let mut args = self.clone();
        args.texts.remove(option);
        args.given.remove(option);
        args
    }

    pub fn is_given(&self, option: &str) -> bool {
        self.given.contains(option)
    }

    /// Whether a flag or a variable has a value for it; an empty one, as variables often have, says
    /// nothing.
    pub fn says(&self, option: &str) -> bool {
        self.texts.get(option).is_some_and(|text| !text.is_empty())
    }

    /// [`ErrorClass::Usage`] where the command line has any but these, although something else has
    /// decided.
    pub fn refuse_given(&self, but: &[&str], why: &str) -> Result<()> {
        let mut flags = Vec::new();
        for arg in options() {
            let id = arg.get_id().as_str();
            if self.is_given(id) && !but.contains(&id) {
                flags.extend(arg.get_long().map(|flag| format!("--{flag}")));
            }
        }
        if flags.is_empty() {
            return Ok(());
        }
        Err(ErrorClass::Usage.error(format!("{} would change nothing: {why}", flags.join(", "))))
    }

    /// The flags that say the same, wherever it was said: a hook may see nothing of our
    /// environment.
    pub fn flags(&self) -> Vec<String> {
        let flags = self.said().filter_map(|(arg, text)| {
            let name = arg.get_long()?;
            // One without a value has no word for its other half, which is the default.
            match arg.get_num_args().is_none_or(|n| n.takes_values()) {
                true => Some(format!("--{name}={text}")),
                false => matches!(boolean(text), Ok(false)).then(|| format!("--{name}")),
            }
        });
        flags.collect()
    }

    /// What is said, in the order of the options. An empty text, as variables often have, says
    /// nothing; but an empty exclusion regex excludes nothing.
    fn said(&self) -> impl Iterator<Item = (Arg, &String)> {
        options().into_iter().filter_map(|arg| {
            let text = self.texts.get(arg.get_id().as_str())?;
            let is_blank = match arg.get_action() {
                ArgAction::Append => text.chars().all(|c| c == ',' || c.is_whitespace()),
                _ => text.is_empty() && arg.get_id() != "exclude",
            };
            (!is_blank).then_some((arg, text))
        })
    }

    fn read(&mut self, matches: &ArgMatches, unused: &[&str]) {
        for arg in options() {
            let id = arg.get_id().as_str();
            if unused.contains(&id) {
                continue;
            }
            if let Ok(Some(texts)) = matches.try_get_many::<String>(id) {
                self.texts.insert(
                    id.to_owned(),
                    texts.map(String::as_str).collect::<Vec<_>>().join(","),
                );
                if matches.value_source(id) == Some(ValueSource::CommandLine) {
                    self.given.insert(id.to_owned());
                }
            }
        }
    }
}

impl SelectOptions {
    /// These, as the config file has them, under what flags and variables say.
    /// [`ErrorClass::Usage`] names the flag and the variable of a bad text.
    pub fn merge(mut self, args: &SelectArgs) -> Result<SelectOptions> {
        if args.texts.is_empty() {
            return Ok(self);
        }
        let command = Command::new("select")
            .no_binary_name(true)
            .disable_help_flag(true);
        // A value each, whatever a command line leaves out; and no second look at the environment.
        let mut command = SelectOptions::augment_args_for_update(command)
            .mut_args(|arg| arg.num_args(1).require_equals(false).env(Resettable::Reset));
        for (arg, text) in args.said() {
            let flag = format!("--{}", arg.get_long().unwrap_or_default());
            let variable = arg.get_env().unwrap_or_default().to_string_lossy();
            let matches = command
                .try_get_matches_from_mut([format!("{flag}={text}")])
                .map_err(|e| match e.source() {
                    Some(why) => anyhow!("{why}"),
                    None => anyhow!("{e}"),
                });
            let matches = matches.class(ErrorClass::Usage, format!("{flag} ({variable})"))?;
            self.update_from_arg_matches(&matches)?;
        }
        Ok(self)
    }
}

/// Every option as clap has it, in the order in which they are declared.
fn options() -> Vec<Arg> {
    SelectOptions::augment_args_for_update(Command::new("select"))
        .get_arguments()
        .cloned()
        .collect()
}

fn offer(command: Command, unused: &[&str]) -> Command {
    let all = SelectOptions::augment_args_for_update(Command::new("select"));
    debug_assert!(
        unused
            .iter()
            .all(|id| all.get_arguments().any(|arg| arg.get_id() == id)),
        "{unused:?}"
    );
    let used = all
        .get_arguments()
        .filter(|arg| !unused.contains(&arg.get_id().as_str()));
    command.args(used.map(|arg| arg.clone().value_parser(StringValueParser::new())))
}

impl Args for SelectArgs {
    fn augment_args(command: Command) -> Command {
        offer(command, &[])
    }

    fn augment_args_for_update(command: Command) -> Command {
        offer(command, &[])
    }
}

impl FromArgMatches for SelectArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SelectArgs, clap::Error> {
        let mut args = SelectArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.read(matches, &[]);
        Ok(())
    }
}

impl<U: Unused> Args for SelectArgsBut<U> {
    fn augment_args(command: Command) -> Command {
        offer(command, U::OPTIONS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        offer(command, U::OPTIONS)
    }
}

impl<U: Unused> FromArgMatches for SelectArgsBut<U> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SelectArgsBut<U>, clap::Error> {
        let mut args = SelectArgsBut(SelectArgs::default(), PhantomData);
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.read(matches, U::OPTIONS);
        Ok(())
    }
}

impl<U> Deref for SelectArgsBut<U> {
    type Target = SelectArgs;

    fn deref(&self) -> &SelectArgs {
        &self.0
    }
}

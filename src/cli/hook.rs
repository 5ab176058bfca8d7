use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, FromArgMatches};

use super::{Cli, Command, without_empty_variables};
use crate::config::options::Global;
use crate::config::select_args::SelectArgs;
use crate::oci::edit::Stage;

const HOOK: &str = "hook";
/// What [`read_plain`] knows: the global options, then those that engines' configuration and our
/// edits write.
const GLOBAL: [&str; 3] = ["config", "state-dir", "run-dir"];
const OWN: [&str; 4] = ["plan", "deadline", "hook-timeout", "agreed"];
/// Variables of options whose names do not begin with RDMA.
const VARIABLES: [&str; 6] = [
    "LOCAL_IP",
    "REMOTE_IP",
    "ALLOW_BOOTSTRAP_RDMA_IFACE",
    "DEBUG_ALL",
    "NCCL_TOPO_FILE",
    "INCLUDE_NCCL_TOPO",
];

#[derive(Debug, Args)]
pub struct HookArgs {
    /// prestart, createRuntime, createContainer, poststart or poststop
    #[arg(value_name = "STAGE")]
    pub stage: Stage,
    /// Plan to use; an annotation must name the same
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    pub plan: Option<String>,
    /// Time to attach [default: by --hook-timeout]
    // What --hook-timeout leaves, at most 50 or what the plan's NICs need; without that 10, and 0.1
    // for each of them. An undo comes on top: see src/deadline.rs.
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: Option<u32>,
    /// When the engine kills this hook
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Wait for busy NICs [default: hook_wait_s, or 0]
    #[arg(
        long,
        env = "RDMAPREP_WAIT",
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(0..=3600)
    )]
    pub wait: Option<u32>,
    /// Refuse a plan whose digest is another
    // `prepare --bundle` writes the digest on which all nodes agreed.
    #[arg(long, env = "RDMAPREP_AGREED", value_name = "DIGEST")]
    pub agreed: Option<String>,
    /// NAME=HANDLE: files that the runtime keeps open
    // `rdmaprep-runtime` passes them. The view of /sys is read there if config.json mounts the same
    // one, else from its file.
    #[arg(
        long,
        env = "RDMAPREP_HANDLES",
        value_name = "HANDLES",
        value_delimiter = ','
    )]
    pub handles: Vec<String>,
    /// Take only this rail: NETDEV or hca:NAME
    // `cdi generate` writes it. The first hook that runs attaches the rails of all hooks in
    // config.json.
    #[arg(long, env = "RDMAPREP_RAIL", value_name = "RAIL")]
    pub rail: Vec<String>,
    /// UID of the claim of Kubernetes that has the rail
    // `rdmaprep-dra` writes it. The claims of all hooks in config.json count.
    #[arg(long, env = "RDMAPREP_CLAIM", value_name = "UID", requires = "rail")]
    pub claim: Option<String>,
    #[command(flatten)]
    pub select: SelectArgs,
}

/// [`Cli::read`] for `hook`, without the other commands: making all of them takes longer than what
/// a hook does for a container that did not opt in. Nothing for another command, an error or help:
/// these are for the whole command.
pub(super) fn read_alone(args: &[OsString]) -> Option<Cli> {
    args.iter().any(|arg| arg == HOOK).then_some(())?;
    if !std::env::vars_os().any(|(name, _)| is_of_an_option(&name)) {
        if let Some(cli) = read_plain(args) {
            return Some(cli);
        }
    }
    let hook = HookArgs::augment_args(clap::Command::new(HOOK));
    let alone = Global::augment_args(clap::Command::new("rdmaprep"))
        .subcommand(hook)
        .subcommand_required(true);
    let matches = without_empty_variables(alone)
        .try_get_matches_from(args)
        .ok()?;
    let command = Command::Hook(Box::new(
        HookArgs::from_arg_matches(matches.subcommand_matches(HOOK)?).ok()?,
    ));
    Some(Cli {
        global: Global::from_arg_matches(&matches).ok()?,
        command,
    })
}

/// Reads a hook's command line without clap: to make its options takes three quarters of the
/// instructions of a hook for a container that did not opt in. `None` for a command line that has
/// anything else in it.
fn read_plain(args: &[OsString]) -> Option<Cli> {
    let mut words = args.iter().skip(1).map(|arg| arg.to_str());
    let (mut plain, mut said) = (Vec::new(), BTreeMap::new());
    while let Some(word) = words.next() {
        let word = word?;
        let Some(flag) = word.strip_prefix("--") else {
            plain.push(word);
            continue;
        };
        let (name, value) = flag
            .split_once('=')
            .or_else(|| Some((flag, words.next()??)))?;
        let is_known =
            GLOBAL.contains(&name) || OWN.contains(&name) && plain.first() == Some(&HOOK);
        let is_usable = is_known && !value.is_empty() && !value.starts_with('-');
        (is_usable && said.insert(name, value).is_none()).then_some(())?;
    }
    let [HOOK, stage] = plain[..] else {
        return None;
    };
    let text = |name| said.get(name).map(|value| (*value).to_owned());
    let path = |name| said.get(name).map(PathBuf::from);
    let hook = HookArgs {
        stage: Stage::WITH_GOFER.into_iter().find(|s| s.name() == stage)?,
        plan: text("plan"),
        deadline: seconds(said.get("deadline"))?,
        hook_timeout: seconds(said.get("hook-timeout"))?,
        wait: None,
        agreed: text("agreed"),
        handles: Vec::new(),
        rail: Vec::new(),
        claim: None,
        select: SelectArgs::default(),
    };
    let global = Global {
        config: path("config"),
        state_dir: path("state-dir"),
        run_dir: path("run-dir"),
    };
    Some(Cli {
        global,
        command: Command::Hook(Box::new(hook)),
    })
}

/// Of an option that is not said, nothing; of what clap would refuse, no answer.
fn seconds(said: Option<&&str>) -> Option<Option<u32>> {
    let Some(text) = said else {
        return Some(None);
    };
    let number = text.parse().ok().filter(|s| (1..=3600).contains(s))?;
    Some(Some(number))
}

fn is_of_an_option(variable: &OsStr) -> bool {
    variable.as_encoded_bytes().starts_with(b"RDMA")
        || VARIABLES.iter().any(|name| variable == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_all_options_are_known() {
        let command = Global::augment_args(HookArgs::augment_args(clap::Command::new(HOOK)));
        let variables: Vec<&OsStr> = command
            .get_arguments()
            .filter_map(|arg| arg.get_env())
            .collect();
        assert!(variables.len() > 20, "{variables:?}");
        let unknown: Vec<_> = variables
            .into_iter()
            .filter(|name| !is_of_an_option(name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn plain_command_lines_are_read_without_clap() {
        for (line, is_plain) in [
            ("hook createRuntime", true),
            ("hook createContainer --plan p --deadline 5", true),
            (
                "--config /c --run-dir=/r hook poststop --state-dir /s",
                true,
            ),
            (
                "hook prestart --plan p --deadline 5 --agreed d --hook-timeout=300",
                true,
            ),
            ("hook createRuntime --plan p --plan q", false),
            ("--plan p hook createRuntime", false),
            ("hook createRuntime --deadline 0", false),
            ("hook createRuntime --plan", false),
            ("hook createRuntime --ib", false),
            ("hook createRuntime extra", false),
            ("status hook", false),
        ] {
            let args: Vec<OsString> = ["rdmaprep"]
                .into_iter()
                .chain(line.split(' '))
                .map(OsString::from)
                .collect();
            assert_eq!(read_plain(&args).is_some(), is_plain, "{line}");
        }
    }
}

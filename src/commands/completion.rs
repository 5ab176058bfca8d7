//! `rdmaprep completion`: scripts for shells, and the words that these ask for.

use std::path::Path;

use anyhow::Result;

use super::config_file::config_to_look;
use super::{container_id, say, store};
use crate::cli::{CompletionArgs, Global, Words, script};
use crate::config::host::Host;
use crate::kernel::boot_id;
use crate::store::records::Records;

pub(super) fn completion(global: &Global, args: &CompletionArgs) -> Result<()> {
    let Some(words) = args.words else {
        let script = args.shell.as_deref().and_then(script);
        return say(script.unwrap_or_default().trim_end());
    };
    let words = known(global, words)?;
    match words.is_empty() {
        true => Ok(()),
        false => say(&words.join("\n")),
    }
}

/// Words that a shell may not split: what has other characters is not completed.
fn known(global: &Global, words: Words) -> Result<Vec<String>> {
    let (config, _) = config_to_look(global)?;
    let store = store(&Host::new(global, &config));
    let mut all = match words {
        Words::Plans => store.all_plans()?,
        Words::Holders => {
            let mut holders = Vec::new();
            for record in Records::read(&store, &boot_id()?)?.readable() {
                for member in &record.members {
                    holders.extend(container_id::names(&member.id, Path::new(&member.bundle)));
                    holders.push(member.id.clone());
                }
            }
            holders
        }
    };
    all.retain(|word| rdma_model::escape::is_plain(word, b"-_."));
    Ok(all)
}

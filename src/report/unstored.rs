//! Plans of the config file that are not stored, as `rdmaprep status` shows them.

use serde::Serialize;

use super::printable;
use super::tables::wrapped;

#[derive(Clone, Debug, Serialize)]
pub struct Unstored {
    pub plan: String,
    /// What `prepare --configured` said of it; nothing where it has not run.
    pub why: Option<String>,
}

pub(super) fn unstored(of: &Unstored) -> String {
    let why = of.why.as_deref();
    let why = why.unwrap_or("nothing has tried to store it since the boot");
    format!(
        "{}\n{}\n  to do       rdmaprep prepare --configured; the units of `rdmaprep install \
        --systemd` do that after each boot, and try again",
        printable(&format!(
            "plan {} of the config file is not stored",
            of.plan
        )),
        wrapped("why", why),
    )
}

use std::ffi::OsString;

/// The command of a call as CNI runtimes make it: without arguments, and with CNI_COMMAND set.
pub(super) fn implied(args: &[OsString]) -> Option<OsString> {
    (args.len() == 1 && std::env::var_os("CNI_COMMAND").is_some()).then(|| "cni".into())
}

use clap::ValueEnum;
use nccl_rules::conf;
use rdma_model::nic::EnvVar;
use serde_json::{Map, Value};

/// A form of the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `export NAME='VALUE'`, for a shell to source
    #[default]
    Sh,
    /// `NAME=VALUE`, for the --env-file of docker and podman
    Docker,
    /// An object of names and values
    Json,
    /// NCCL's own file, /etc/nccl.conf
    Conf,
}

/// The settings in that form, and what it cannot hold: `NAME: why`.
pub fn write(env: &[EnvVar], format: Format) -> (String, Vec<String>) {
    // No form has a way to write one: a shell's word can, but what reads the others ends at the
    // line.
    let (fit, split): (Vec<&EnvVar>, Vec<&EnvVar>) = env
        .iter()
        .partition(|v| format != Format::Docker || !v.value.contains(['\n', '\r']));
    let left = split
        .iter()
        .map(|v| format!("{}: a line of an --env-file cannot hold its value", v.name))
        .collect();
    let lines = |line: &dyn Fn(&EnvVar) -> String| fit.iter().map(|v| line(v)).collect::<String>();
    match format {
        Format::Sh => (
            lines(&|v| format!("export {}='{}'\n", v.name, v.value.replace('\'', "'\\''"))),
            left,
        ),
        Format::Docker => (lines(&|v| format!("{}={}\n", v.name, v.value)), left),
        Format::Json => {
            let all: Map<String, Value> = env
                .iter()
                .map(|v| (v.name.clone(), v.value.clone().into()))
                .collect();
            (format!("{:#}\n", Value::Object(all)), left)
        }
        Format::Conf => {
            let merged = conf::merge(b"", env);
            (
                String::from_utf8_lossy(&merged.bytes).into_owned(),
                merged.left,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn var(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.into(),
            value: value.into(),
            why: String::new(),
        }
    }

    #[test]
    fn each_form_says_the_same() {
        let env = [
            var("NCCL_IB_HCA", "=mlx5_0"),
            var("GLOO_SOCKET_IFNAME", "it's"),
        ];
        let text = |format| write(&env, format).0;
        assert_eq!(
            text(Format::Sh),
            "export NCCL_IB_HCA='=mlx5_0'\nexport GLOO_SOCKET_IFNAME='it'\\''s'\n"
        );
        assert_eq!(
            text(Format::Docker),
            "NCCL_IB_HCA==mlx5_0\nGLOO_SOCKET_IFNAME=it's\n"
        );
        assert_eq!(
            text(Format::Json),
            "{\n  \"NCCL_IB_HCA\": \"=mlx5_0\",\n  \"GLOO_SOCKET_IFNAME\": \"it's\"\n}\n"
        );
        assert_eq!(text(Format::Conf), "NCCL_IB_HCA==mlx5_0\n");
        assert_eq!(
            write(&env, Format::Conf).1,
            ["GLOO_SOCKET_IFNAME: only NCCL reads its config file"]
        );
    }

    #[test]
    fn what_a_line_cannot_hold_is_left_and_named() {
        assert_eq!(write(&[var("NCCL_X", "a\nb")], Format::Docker).1.len(), 1);
    }
}

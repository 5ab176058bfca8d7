//! rdma-core in made-up images: Debian's layout, and what is otherwise in each.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nccl_rules::settings::{Plugin, Settings};
use rdma_model::ids::HcaName;
use rdmaprep::container::budget::Budget;
use rdmaprep::container::nccl_files::{of_bundle, plugin};
use rdmaprep::container::userspace::{self, Userspace, look};
use rdmaprep::kernel::mount::rootfs::Root;

/// For a look, on a machine however busy.
const PATIENT: Duration = Duration::from_secs(3600);
const LIB: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = match cfg!(target_arch = "aarch64") {
    true => "lib/ld-linux-aarch64.so.1",
    false => "lib64/ld-linux-x86-64.so.2",
};

struct Image(tempfile::TempDir);

impl Image {
    /// A root with a loader, its configuration and its cache, and no library.
    fn bare(id: &str) -> Image {
        let image = Image(tempfile::tempdir().unwrap());
        image.library(LOADER, &[]);
        image.text("etc/os-release", &format!("NAME=x\nID={id}\n"));
        image.text("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
        image.text("etc/ld.so.conf.d/own.conf", "# own\n/opt/own/lib\n");
        image.cache(&[]);
        image
    }

    /// Debian's libibverbs1, ibverbs-providers and librdmacm1.
    fn debian() -> Image {
        let image = Image::bare("debian");
        image.verbs(&format!("{LIB}/libibverbs.so.1.14.44.0"), 34);
        image.link(&format!("{LIB}/libibverbs.so.1"), "libibverbs.so.1.14.44.0");
        image.library(&format!("{LIB}/librdmacm.so.1"), &[]);
        image.library(&format!("{LIB}/libmlx5.so.1"), &[]);
        image.link(
            &format!("{LIB}/libibverbs/libmlx5-rdmav34.so"),
            "../libmlx5.so.1",
        );
        image.library(&format!("{LIB}/libibverbs/librxe-rdmav34.so"), &[]);
        for name in ["mlx5", "rxe"] {
            image.text(
                &format!("etc/libibverbs.d/{name}.driver"),
                &format!("driver {name}\n"),
            );
        }
        image
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn text(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.at(path)).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    /// An ELF file of this machine that has these strings.
    fn library(&self, path: &str, strings: &[&str]) {
        let machine: u16 = if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        };
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend(machine.to_le_bytes());
        for string in strings {
            bytes.extend([b"\0", string.as_bytes(), b"\0"].concat());
        }
        fs::write(self.at(path), bytes).unwrap();
    }

    fn verbs(&self, path: &str, abi: u32) {
        let folder = format!("/{LIB}/libibverbs/lib%s-rdmav{abi}.so");
        let plain = format!("lib%s-rdmav{abi}.so");
        self.library(path, &[&plain, "/etc/libibverbs.d", &folder]);
    }

    /// As ldconfig writes it.
    fn cache(&self, libraries: &[(&str, &str)]) {
        let count = libraries.len() as u32;
        let mut bytes = [b"glibc-ld.so.cache1.1".as_slice(), &count.to_le_bytes()].concat();
        bytes.resize(48, 0);
        let (mut strings, start) = (Vec::new(), 48 + libraries.len() * 24);
        for (name, path) in libraries {
            let key = (start + strings.len()) as u32;
            strings.extend([name.as_bytes(), b"\0"].concat());
            let value = (start + strings.len()) as u32;
            strings.extend([path.as_bytes(), b"\0"].concat());
            for number in [0x0303, key, value, 0, 0, 0] {
                bytes.extend(number.to_le_bytes());
            }
        }
        fs::write(self.at("etc/ld.so.cache"), [bytes, strings].concat()).unwrap();
    }

    /// With a budget of its own.
    fn look(&self, env: &[(&str, &str)], wanted: &[&str]) -> Option<Userspace> {
        let env = env
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        let root = Root::open(self.0.path()).unwrap();
        let program = Some("job");
        look(&root, &env.collect(), program, wanted, &Budget::of(PATIENT))
    }

    fn lacks(&self, hcas: &[(&str, &str)], env: &[(&str, &str)]) -> Vec<String> {
        let names: Vec<HcaName> = hcas.iter().map(|(name, _)| name.parse().unwrap()).collect();
        let drivers = hcas.iter().map(|(_, driver)| *driver);
        let wanted: Vec<&str> = drivers.clone().filter_map(userspace::provider).collect();
        let found = self.look(env, &wanted).expect("a loader");
        found
            .lacks(names.iter().zip(drivers), false)
            .into_iter()
            .map(|lack| format!("{}: {}", lack.seen, lack.fix))
            .collect()
    }
}

const CX: (&str, &str) = ("mlx5_0", "mlx5_core");

#[test]
fn a_whole_image_lacks_nothing() {
    let image = Image::debian();
    let rxe = ("rxe0", "rxe");
    assert!(
        image
            .lacks(&[CX, ("mlx5_1", "mlx5_core.sf"), rxe], &[])
            .is_empty()
    );
    assert!(
        image
            .lacks(&[("x0", "a driver of tomorrow")], &[])
            .is_empty()
    );
    // All of it where the cache alone leads.
    let image = Image::bare("rocky");
    image.verbs("opt/x/libibverbs.so.1", 57);
    image.library("opt/x/librdmacm.so.1", &[]);
    image.library("opt/x/libmlx5-rdmav57.so", &[]);
    image.text("etc/libibverbs.d/x", "#\n  driver\tmlx5  \n");
    let names = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5-rdmav57.so"];
    let paths = names.map(|name| format!("/opt/x/{name}"));
    let cached: Vec<_> = names
        .into_iter()
        .zip(paths.iter().map(String::as_str))
        .collect();
    image.cache(&cached);
    assert!(image.lacks(&[CX], &[]).is_empty());
    // And by the environment.
    image.cache(&[]);
    assert!(
        image
            .lacks(&[CX], &[("LD_LIBRARY_PATH", "lib:/opt/x")])
            .is_empty()
    );
    image.remove("etc/libibverbs.d/x");
    let env = [("LD_LIBRARY_PATH", "/opt/x"), ("IBV_DRIVERS", "rxe:mlx5")];
    assert!(image.lacks(&[CX], &env).is_empty());
}

#[test]
fn what_an_image_lacks_is_told_with_its_package() {
    let one = |image: &Image, hcas: &[(&str, &str)], expected: &[&str]| {
        assert_eq!(image.lacks(hcas, &[]), expected);
    };
    let verbs = "the loader of the image finds no libibverbs.so.1: install";
    let rdmacm = "the loader of the image finds no librdmacm.so.1: install";
    for (id, packages, of_cm) in [
        ("debian", "libibverbs1 and ibverbs-providers", "librdmacm1"),
        ("fedora", "libibverbs", "librdmacm"),
        ("sles", "libibverbs1 and libibverbs", "librdmacm1"),
        ("arch", "rdma-core", "rdma-core"),
    ] {
        let both = [
            format!("{verbs} {packages} in the image"),
            format!("{rdmacm} {of_cm} in the image"),
        ];
        assert_eq!(Image::bare(id).lacks(&[CX], &[]), both);
    }
    let image = Image::bare("debian");
    image.library("opt/own/lib/libibverbs.so.1", &[]);
    image.library("opt/own/lib/librdmacm.so.1", &[]);
    let run = "which /etc/ld.so.cache lacks: run ldconfig in the image";
    let uncached = |name: &str| format!("{name} of the image is in /opt/own/lib, {run}");
    let both = ["libibverbs.so.1", "librdmacm.so.1"].map(uncached);
    // As Debian has it, and as the Red Hat family does.
    for folder in ["/etc/ld.so.conf.d", "ld.so.conf.d"] {
        image.text("etc/ld.so.conf", &format!("include {folder}/*.conf\n"));
        assert_eq!(image.lacks(&[CX], &[]), both);
    }

    let folder = format!("/{LIB}/libibverbs");
    let image = Image::debian();
    let late = format!(
        "the image has no libionic-rdmav34.so in {folder}, the provider of ion0: install \
        ibverbs-providers of a release that has ionic: other providers are there"
    );
    one(&image, &[CX, ("ion0", "ionic")], &[&late]);
    for name in ["mlx5", "rxe"] {
        image.remove(&format!("{LIB}/libibverbs/lib{name}-rdmav34.so"));
    }
    let none = format!(
        "the image has no libmlx5-rdmav34.so in {folder}, the provider of mlx5_0, mlx5_1: install \
        ibverbs-providers in the image"
    );
    one(&image, &[CX, ("mlx5_1", "mlx5_core")], &[&none]);
    image.library(&format!("{LIB}/libibverbs/libmlx5-rdmav59.so"), &[]);
    let other = "libibverbs of the image loads libmlx5-rdmav34.so for mlx5_0, and the image has \
        libmlx5-rdmav59.so: install libibverbs1 and ibverbs-providers of one release of \
        rdma-core in the image, and mount none of the host's into it";
    one(&image, &[CX], &[other]);

    let image = Image::debian();
    image.remove("etc/libibverbs.d/mlx5.driver");
    let unnamed = "no file of /etc/libibverbs.d has `driver mlx5`: libibverbs passes mlx5_0 over: \
        install ibverbs-providers in the image, whole";
    one(&image, &[CX, ("rxe0", "rxe")], &[unnamed]);
}

/// A library that is there and needs another one, which is not: as after a COPY of single files.
#[test]
fn a_library_that_does_not_load_is_no_library() {
    let image = Image::debian();
    let needs = |file: &str, name: &str| {
        let path = image.at(file);
        let mut bytes = program(1, name);
        let old = fs::read(&path).unwrap();
        bytes.extend(&old[20..]);
        bytes[18..20].copy_from_slice(&old[18..20]);
        fs::write(path, bytes).unwrap();
    };
    needs(&format!("{LIB}/libibverbs.so.1"), "libnl-3.so.200");
    image.library(&format!("{LIB}/libnl-3.so.200"), &[]);
    assert_eq!(image.lacks(&[CX], &[]), [""; 0]);
    needs(&format!("{LIB}/librdmacm.so.1"), "libx.so.1");
    needs(&format!("{LIB}/libmlx5.so.1"), "liby.so.1");
    let no = "which its loader does not find";
    let end = "in the image, with what it depends on";
    assert_eq!(
        image.lacks(&[CX], &[]),
        [
            format!(
                "libmlx5-rdmav34.so of the image needs liby.so.1, {no}: install ibverbs-providers \
                {end}"
            ),
            format!("librdmacm.so.1 of the image needs libx.so.1, {no}: install librdmacm1 {end}")
        ]
    );
    // What is needed by what it needs, and by no folder of its own.
    needs(&format!("{LIB}/libnl-3.so.200"), "libz.so.1");
    let both = "libibverbs1 and ibverbs-providers";
    assert_eq!(
        image.lacks(&[CX], &[])[0],
        format!("libibverbs.so.1 of the image needs libz.so.1, {no}: install {both} {end}")
    );
}

/// A program with this tag of its dynamic section: DT_NEEDED is 1, DT_RPATH 15, DT_RUNPATH 29.
fn program(tag: u64, path: &str) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(64, 0);
    bytes[32] = 64;
    bytes[56] = 2;
    let (dynamic, strings): (u64, u64) = (176, 224);
    let end = strings + 1 + path.len() as u64 + 1;
    for (kind, at, size) in [(1, 0, end), (2, dynamic, 48)] {
        for word in [kind, at, at, at, size, size, 8] {
            bytes.extend(word.to_le_bytes());
        }
    }
    for word in [tag, 1, 5, strings, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([b"\0", path.as_bytes(), b"\0"].concat());
    bytes
}

/// As python of conda finds libraries: a RUNPATH of the program does not count for what libraries
/// load, and with one an RPATH does not either.
#[test]
fn a_programs_rpath_leads_to_libraries() {
    let image = Image::bare("debian");
    image.library("opt/conda/lib/libibverbs.so.1", &[]);
    let verbs = |env: &[(&str, &str)]| format!("{:?}", image.look(env, &[]).unwrap().verbs);
    let write = |name: &str, bytes: &[u8]| fs::write(image.at(name), bytes).unwrap();
    let path = [("PATH", "/bin:/opt/conda/bin")];
    assert_eq!(verbs(&path), "Missing");
    write("opt/conda/bin/python3", &program(15, "/x:$ORIGIN/../lib"));
    image.link("opt/conda/bin/job", "python3");
    let found = "Found(\"/opt/conda/bin/../lib/libibverbs.so.1\")";
    assert_eq!(verbs(&path), found);
    assert_eq!(verbs(&[]), "Missing");
    image.remove("opt/conda/bin/job");
    image.text("bin/job", "#!/usr/bin/env python3\nimport torch\n");
    assert_eq!(verbs(&path), found);
    image.text("bin/job", "#!/opt/conda/bin/python3 -u\n");
    assert_eq!(verbs(&path), found);
    write("bin/job", &program(29, "/opt/conda/lib"));
    assert_eq!(verbs(&path), "Missing");
    let whole = program(15, "/opt/conda/lib");
    // Its last byte ends the text.
    for cut in 0..whole.len() - 1 {
        write("bin/job", &whole[..cut]);
        assert_eq!(verbs(&path), "Missing", "{cut}");
    }
}

/// Of rdma-core 54 or later: libmlx5 has the function by which NCCL asks.
#[test]
fn data_direct_needs_a_function_of_libmlx5() {
    let image = Image::debian();
    let knows = |wanted: &[&str]| image.look(&[], wanted).unwrap().data_direct;
    assert_eq!(knows(&["mlx5"]), Some(false));
    assert_eq!(knows(&["rxe"]), None);
    let function = "mlx5dv_get_data_direct_sysfs_path";
    image.library(&format!("{LIB}/libmlx5.so.1"), &["x", function]);
    assert_eq!(knows(&["mlx5", "rxe"]), Some(true));
    // NCCL takes this name first.
    image.library(&format!("{LIB}/libmlx5.so"), &["mlx5dv_get_data_direct"]);
    assert_eq!(knows(&["mlx5"]), Some(false));
    let name: HcaName = "mlx5_0".parse().unwrap();
    let found = image.look(&[], &["mlx5"]).unwrap();
    let lacks = |is_direct| found.lacks([(&name, "mlx5_core")], is_direct);
    let fix = "take libibverbs1 and ibverbs-providers of rdma-core 54 or later";
    assert_eq!(lacks(true)[0].fix, fix);
    assert!(lacks(false).is_empty());
}

/// A plugin as `nccl explain` looks for it in a container.
#[test]
fn a_plugin_is_where_the_loader_finds_it() {
    let image = Image::bare("ubuntu");
    image.library("opt/hpcx/lib/libnccl-net.so", &["ncclNetPlugin_v8"]);
    let ofi = "/opt/amazon/lib/libnccl-net-ofi.so";
    image.library(&ofi[1..], &["ncclNetPlugin_v12", "ncclCollNetPlugin_v8"]);
    image.cache(&[("libnccl-net-ofi.so", ofi)]);
    let root = Root::open(image.0.path()).unwrap();
    let found = |folders, named: Option<&str>, release: &str| {
        let settings = Settings::of(named.map(|name| ("NCCL_NET_PLUGIN", name)), "");
        plugin(&root, folders, &settings, release.parse().unwrap())
    };
    assert_eq!(found(None, None, "2.32.3"), Plugin::Missing);
    let hpcx = Plugin::Found("/opt/hpcx/lib/libnccl-net.so".to_owned());
    let folder = Some("/opt/hpcx/lib");
    assert_eq!(found(folder, None, "2.32.3"), hpcx);
    assert_eq!(found(folder, Some("none"), "2.32.3"), Plugin::Missing);
    let is_ofi = Plugin::Found(ofi.to_owned());
    assert_eq!(found(None, Some("ofi"), "2.32.3"), is_ofi);
    assert_eq!(found(None, Some(ofi), "2.30.3"), is_ofi);
    assert_eq!(found(None, Some("/opt/none.so"), "2.32.3"), Plugin::Missing);
    // Of the list, the first that the release can use.
    let unfit = Plugin::Unfit(ofi.to_owned());
    assert_eq!(found(folder, Some("ofi"), "2.29.7"), unfit);
    assert_eq!(found(folder, Some("ofi,libnccl-net.so"), "2.29.7"), hpcx);
    assert_eq!(
        found(folder, None, "2.19.3"),
        Plugin::Unfit("/opt/hpcx/lib/libnccl-net.so".into())
    );
}

/// What NCCL finds in a bundle: the image's files and libraries, and none of this host's.
#[test]
fn a_bundles_settings_are_its_images() {
    let image = Image::bare("debian");
    image.text(
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\nme:x:7:7::/home/me:/bin/sh\n",
    );
    image.text("etc/nccl.conf", "NCCL_NET=IB\nNCCL_IB_TC=1\n");
    image.text("home/me/.nccl.conf", "NCCL_IB_TC=2\r\n");
    image.library("opt/lib/libnccl-net.so", &["ncclNetPlugin_v8"]);
    let config = |uid: u32, mounts: &str| {
        format!(
            r#"{{"ociVersion": "1.0.2", "root": {{"path": {:?}}}, "mounts": [{mounts}],
            "process": {{"user": {{"uid": {uid}}}, "env": []}}}}"#,
            image.0.path()
        )
    };
    let found = |text: &str, release: &str| {
        let env = [("LD_LIBRARY_PATH".to_owned(), "/opt/lib".to_owned())].into();
        of_bundle(Path::new("/none"), text, env, release.parse().unwrap())
    };
    let seen = found(&config(7, ""), "2.29.7");
    let values = ["NCCL_NET", "NCCL_IB_TC"].map(|name| seen.settings.get(name).unwrap().to_owned());
    assert_eq!(values, ["IB", "2\r"]);
    assert!(matches!(seen.plugin, Plugin::Found(_)), "{seen:?}");
    // The runtime sets HOME.
    let seen = found(&config(7, ""), "2.30.7");
    assert_eq!(seen.settings.get("NCCL_IB_TC"), Some("2"));
    assert_eq!(
        found(&config(0, ""), "2.29.7").settings.get("NCCL_IB_TC"),
        Some("1")
    );
    let seen = found(
        &config(0, r#"{"destination": "/etc/"}, {"destination": "opt/lib"}"#),
        "2.29.7",
    );
    let note = "/etc/nccl.conf in the container is not looked at: config.json mounts /etc/ over it";
    assert_eq!(
        (seen.notes, seen.plugin),
        (vec![note.to_owned()], Plugin::Unknown)
    );
    let seen = found("{}", "2.29.7");
    assert!(seen.notes[0].contains("root are not looked at"), "{seen:?}");
}

/// What is no library of this machine, and what a link of the image names on the host.
#[test]
fn only_the_images_own_libraries_count() {
    let outside = Image::debian();
    let image = Image::debian();
    let file = format!("{LIB}/libmlx5.so.1");
    image.remove(&file);
    let there = outside.0.path().join(&file);
    image.link(&file, there.to_str().unwrap());
    assert_eq!(image.lacks(&[CX], &[]).len(), 1, "a link to the host");
    image.remove(&file);
    image.link(
        &file,
        &format!("../../../../../../../../{}", there.display()),
    );
    assert_eq!(image.lacks(&[CX], &[]).len(), 1, "a link upwards");
    image.remove(&file);
    image.text(&file, "\x7fELF\x01 of 32 bits, and long enough");
    assert_eq!(image.lacks(&[CX], &[]).len(), 1, "of another machine");
    image.remove(&file);
    image.link(&file, "libmlx5.so.1");
    assert_eq!(image.lacks(&[CX], &[]).len(), 1, "a circle");
    nix::unistd::mkfifo(&image.at("usr/lib/libx.so"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    image.remove(&file);
    image.link(&file, "/usr/lib/libx.so");
    assert_eq!(image.lacks(&[CX], &[]).len(), 1, "a FIFO");
    let none = Image::debian();
    none.remove(LOADER);
    assert_eq!(none.look(&[], &["mlx5"]), None, "no loader");
}

/// `prepare --bundle` says what the image lacks, also what NCCL alone does without.
#[test]
fn a_bundle_is_looked_at_before_it_starts() {
    let bundle = tempfile::tempdir().unwrap();
    let image = Image::bare("debian");
    let rootfs = image.0.path().display();
    let config = |mounts: &str| {
        format!(
            r#"{{"ociVersion": "1.0.2", "root": {{"path": "{rootfs}"}}, "mounts": [{mounts}],
            "process": {{"env": ["PATH=/bin"]}}}}"#
        )
    };
    let name: HcaName = "mlx5_0".parse().unwrap();
    let notes = |text: &str| {
        let hcas = [(&name, "mlx5_core")].into_iter();
        let lacks = userspace::bundle_lacks(Path::new(bundle.path()), text, hcas, true);
        lacks.map_or_else(
            |hidden| vec![hidden],
            |lacks| lacks.iter().map(ToString::to_string).collect(),
        )
    };
    assert_eq!(
        notes(&config("")),
        [
            "the loader of the image finds no libibverbs.so.1: install libibverbs1 and \
            ibverbs-providers in the image",
            "the loader of the image finds no librdmacm.so.1: install librdmacm1 in the image"
        ]
    );
    // With libibverbs there, what Data Direct lacks.
    let whole = Image::debian();
    let old = config("").replace(&rootfs.to_string(), &whole.0.path().display().to_string());
    assert!(notes(&old)[0].starts_with("libmlx5 of the image does not know Data Direct"));
    for at in ["/usr/lib64/libibverbs.so.1", "/etc", "/usr/", "//", "lib64"] {
        let bound = format!(r#"{{"destination": "{at}", "source": "/x"}}"#);
        let hidden = format!(
            "whether the image has the libraries for RDMA is not known: config.json mounts {at} \
            over them; the create hook looks there"
        );
        assert_eq!(notes(&config(&bound)), [hidden]);
    }
    // A driver's libraries, as CDI brings them, and other folders hide nothing that is looked at.
    for at in [
        "/etc/hosts",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/python3",
        "/opt/conda",
        "/data",
    ] {
        let bound = format!(r#"{{"destination": "{at}", "source": "/x"}}"#);
        let seen = notes(&config(&bound));
        assert!(
            seen[0].contains("finds no libibverbs.so.1"),
            "{at}: {seen:?}"
        );
    }
    // Over a folder of LD_LIBRARY_PATH, or by a link to one.
    let data = config(r#"{"destination": "/data"}"#);
    let env = |line: &str| notes(&data.replace("PATH=/bin", line))[0].clone();
    assert!(env("LD_LIBRARY_PATH=/data/lib:/x").contains("mounts /data over"));
    symlink("data", image.0.path().join("link")).unwrap();
    fs::create_dir(image.0.path().join("data")).unwrap();
    assert!(env("LD_LIBRARY_PATH=/link/lib").contains("mounts /data over"));
    assert!(notes("{").is_empty());
}

/// NCCL_IBVERBS_LIB is opened first: its file says which providers are loaded, and where it is none
/// of libibverbs, no other is opened.
#[test]
fn a_named_libibverbs_is_the_one_that_counts() {
    let image = Image::debian();
    let named = |name: &str| image.lacks(&[CX], &[("NCCL_IBVERBS_LIB", name)]);
    let own = "/opt/own/libibverbs.so";
    let missing = format!(
        "NCCL_IBVERBS_LIB={own} is not found by the loader of the image: unset NCCL_IBVERBS_LIB, \
        or name libibverbs.so.1 of the image"
    );
    assert_eq!(named(own), [missing]);
    let other = "has no ibv_get_device_list: NCCL from 2.30.3 on uses no HCA";
    assert!(named("")[0].contains(other) && named("libmlx5.so.1")[0].contains(other));
    // As libibverbs.so.1 has it, and one that loads other providers.
    image.library(
        "opt/own/libibverbs.so",
        &["ibv_get_device_list", "lib%s-rdmav50.so"],
    );
    let lacks = named(own);
    assert_eq!(lacks.len(), 1);
    assert!(
        lacks[0].starts_with("the image has no libmlx5-rdmav50.so"),
        "{lacks:?}"
    );
    assert!(image.lacks(&[CX], &[]).is_empty());
    // Where it is depends on the program's folder.
    assert!(named("./libibverbs.so").is_empty());
}

/// An image's author decides how much there is to look at: what is not looked at to the end is not
/// known.
#[test]
fn a_look_has_an_end() {
    let image = Image::bare("debian");
    let folders = |count: usize| (0..count).map(|n| format!("/{n}")).collect::<Vec<_>>();
    let of_path = |count| image.look(&[("LD_LIBRARY_PATH", &folders(count).join(":"))], &[]);
    assert!(of_path(64).is_some());
    assert_eq!(of_path(65), None, "folders");

    // 1 MiB of ld.so.conf in all of its files.
    image.text("opt/long", &" ".repeat(600 << 10));
    image.link("etc/ld.so.conf.d/1.conf", "/opt/long");
    assert!(image.look(&[], &[]).is_some());
    image.link("etc/ld.so.conf.d/2.conf", "/opt/long");
    assert_eq!(image.look(&[], &[]), None, "ld.so.conf");

    let image = Image::debian();
    image.text("opt/long", &" ".repeat(1 << 20));
    image.link("etc/libibverbs.d/x", "/opt/long");
    assert!(image.look(&[], &[]).is_some());
    for name in 0..16 {
        image.link(&format!("etc/libibverbs.d/{name}.driver"), "/opt/long");
    }
    assert_eq!(image.look(&[], &[]), None, "16 MiB in all");

    let image = Image::debian();
    let root = Root::open(image.0.path()).unwrap();
    let budget = Budget::of(PATIENT);
    budget.give_up();
    assert_eq!(
        look(&root, &BTreeMap::new(), None, &[], &budget),
        None,
        "time"
    );
}

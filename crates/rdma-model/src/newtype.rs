//! Types that are read from text and cannot hold nonsense: what comes from JSON passes the same
//! checks as a flag.

/// serde through `FromStr` and `Display`, for a type that is marked
/// `#[serde(try_from = "String", into = "String")]`. The crate that names it depends on anyhow.
#[macro_export]
macro_rules! serde_as_text {
    ($($t:ty),*) => {$(
        impl TryFrom<String> for $t {
            type Error = anyhow::Error;
            fn try_from(s: String) -> anyhow::Result<Self> {
                s.parse()
            }
        }
        impl From<$t> for String {
            fn from(v: $t) -> String {
                v.to_string()
            }
        }
    )*};
}

/// A newtype of a `String` that was checked:
/// `checked_text! { /// Docs. Name(text) { ensure!(…) } }`. The crate that names it depends on
/// anyhow and serde. With `, ordered elsewhere` at the end it has no order of its own.
#[macro_export]
macro_rules! checked_text {
    ($(#[$meta:meta])* $name:ident($text:ident) $check:block) => {
        $crate::checked_text! {
            #[derive(PartialOrd, Ord)]
            $(#[$meta])*
            $name($text) $check, ordered elsewhere
        }
    };
    ($(#[$meta:meta])* $name:ident($text:ident) $check:block, ordered elsewhere) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = anyhow::Error;
            fn from_str($text: &str) -> anyhow::Result<Self> {
                $check;
                Ok($name($text.to_owned()))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        $crate::serde_as_text!($name);
    };
}

//! Enums whose variants have names in files, each spelled out only once.

/// Defines an enum with a name for each variant, and derives serde's traits, `ALL`, `as_str` and `Display`. With
/// `else` it also derives `FromStr`; the type after `else` is the error for an unknown name.
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $type:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        $vis enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl $type {
            /// All variants, in order.
            $vis const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name used in files.
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $type:ident else $unknown:ident $message:literal {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $crate::named! {
            $(#[$meta])*
            $vis enum $type {
                $($(#[$doc])* $variant = $name,)*
            }
        }

        impl std::str::FromStr for $type {
            type Err = $unknown;

            fn from_str(name: &str) -> Result<Self, $unknown> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    other => Err($unknown(other.to_owned())),
                }
            }
        }

        #[doc = concat!("A name that is not a [`", stringify!($type), "`].")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error($message)]
        $vis struct $unknown(String);
    };
}

/// Defines a struct for files. Fields marked with `= default` are omitted while they have their default value.
macro_rules! sparse {
    (
        $(#[$meta:meta])*
        pub struct $type:ident {
            $($(#[$of_field:meta])* pub $field:ident: $value:ty $(= $default:ident)?,)*
        }
    ) => {
        $(#[$meta])*
        pub struct $type {
            $(
                $(#[$of_field])*
                $(#[serde($default, skip_serializing_if = "crate::names::is_default")])?
                pub $field: $value,
            )*
        }
    };
}

/// Returns true if a field has its default value.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Implements serde's traits using `Display` and `FromStr`.
macro_rules! as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(super) use as_text;
pub(super) use named;
pub(super) use sparse;

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::str::FromStr;

    use serde::Serialize;

    use crate::action::ActionName;
    use crate::event::ProxyPhase;
    use crate::load::{Pacing, StreamKind};
    use crate::{Cause, Evidence, Mode, Outcome, Phase, Protocol, ServedEnd, StreamEnd, TlsSession};

    fn read_back<T>(all: &[T])
    where
        T: FromStr<Err: Debug> + ToString + Serialize + PartialEq + Debug,
    {
        for one in all {
            let name = one.to_string();
            assert_eq!(&name.parse::<T>().unwrap(), one);
            assert_eq!(serde_json::to_value(one).unwrap(), serde_json::Value::from(name));
        }
        assert!("x".parse::<T>().is_err());
    }

    #[test]
    fn names_round_trip_through_text() {
        read_back(ActionName::ALL);
        read_back(Cause::ALL);
        read_back(Evidence::ALL);
        read_back(Mode::ALL);
        read_back(Outcome::ALL);
        read_back(Pacing::ALL);
        read_back(Phase::ALL);
        read_back(Protocol::ALL);
        read_back(ProxyPhase::ALL);
        read_back(ServedEnd::ALL);
        read_back(StreamEnd::ALL);
        read_back(StreamKind::ALL);
        read_back(TlsSession::ALL);
    }
}

//! The questions, and the arguments that each takes.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::source::AskError;

/// Bytes of an argument at most.
const MAX_ARGUMENT: usize = 1000;

macro_rules! questions {
    ($($(#[$doc:meta])* $variant:ident $name:literal, $about:literal, needs $needs:expr, may $may:expr;)*) => {
        /// A question.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Question {
            $($(#[$doc])* $variant,)*
        }

        impl Question {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name for programs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it answers.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)* }
            }

            /// Arguments that it needs.
            #[must_use]
            pub const fn needs(self) -> &'static [Argument] {
                match self { $(Self::$variant => $needs,)* }
            }

            /// Arguments that it takes, too.
            #[must_use]
            pub const fn may_have(self) -> &'static [Argument] {
                match self { $(Self::$variant => $may,)* }
            }
        }
    };
}

use Argument::{From, Host, Id, OtherFrom, OtherTo, Paths, Process, Since, To, Vm};

questions! {
    /// What is wrong.
    WhatIsWrong "what-is-wrong",
        "What is wrong now: which VMs lose CPU time, to what, and since when. Start here: it lists the VMs, too.",
        needs &[], may &[Host, Vm, From, To];
    /// Why a VM was slow.
    WhySlow "why-slow",
        "Why a VM was slow in a time: where its vCPUs' time went, who took it, and the cause.",
        needs &[Vm], may &[Host, From, To];
    /// Who took its CPU.
    WhoTookCpu "who-took-cpu",
        "Who had the CPUs while a VM waited for one, and which functions they ran.",
        needs &[Vm], may &[Host, From, To];
    /// What changed.
    WhatChanged "what-changed",
        "What changed since an instant: states and functions of a VM before and after, and findings that began since.",
        needs &[Since], may &[Vm, Host, From, To];
    /// The hottest functions.
    HotFunctions "hot-functions",
        "The functions that took most time, of a VM with time lost and without, or of a whole host; call paths with `paths`.",
        needs &[], may &[Vm, Host, From, To, Paths];
    /// Two times.
    Compare "compare",
        "Compare two times of a VM: states, functions and takers of its CPU time.",
        needs &[Vm, OtherFrom, OtherTo], may &[Host, From, To];
    /// What helps.
    WhatHelps "what-helps",
        "What would help, with the CPUs that each measure would give back.",
        needs &[], may &[Vm, Host, From, To];
    /// What a traced job waited for.
    JobWaits "job-waits",
        "What a traced job waited for, and what would make it faster. Traces only.",
        needs &[], may &[Process];
    /// One thing more closely.
    Details "details",
        "More about one row of an answer, by its id. Give the same vm, host, from and to as for that answer.",
        needs &[Id], may &[Vm, Host, From, To];
}

macro_rules! arguments {
    ($($variant:ident $field:ident $about:literal;)*) => {
        /// An argument's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Argument {
            $(#[doc = $about] $variant,)*
            /// With call paths.
            Paths,
        }

        /// The arguments of a question, as callers write them.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Arguments {
            $(#[doc = $about] pub $field: Option<String>,)*
            /// With call paths.
            pub paths: bool,
        }

        impl Argument {
            /// Its name for programs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)* Self::Paths => "paths" }
            }

            fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => $about,)*
                    Self::Paths => "With call paths, where they were recorded.",
                }
            }

            fn given(self, arguments: &Arguments) -> Option<&str> {
                match self {
                    $(Self::$variant => arguments.$field.as_deref(),)*
                    Self::Paths => arguments.paths.then_some(""),
                }
            }

            const ALL: &'static [Self] = &[$(Self::$variant,)* Self::Paths];
        }
    };
}

arguments! {
    Host host "The host's name; a recording has one host.";
    Vm vm "The VM's name.";
    From from "First instant: 2026-01-31T12:00:00Z; in a recording also seconds after its start; at a server also how long ago: 2h.";
    To to "The instant after the last, written like `from`.";
    OtherFrom other_from "First instant of the other time, written like `from`.";
    OtherTo other_to "The instant after the last of the other time.";
    Since since "The instant of the change, written like `from`.";
    Id id "The `id` of a row in an earlier answer.";
    Process process "Only this process of the trace: its name or number.";
}

impl Question {
    /// The question of a name, which may have underscores in place of dashes.
    ///
    /// # Errors
    /// When there is none, with the names that there are.
    pub fn find(name: &str) -> Result<Self, AskError> {
        let name = name.replace('_', "-");
        let found = Self::ALL.iter().find(|question| question.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|question| question.name()).collect();
            AskError::Arguments(format!("no such question: there are {}", names.join(", ")))
        })
    }

    /// The JSON schema of its arguments.
    #[must_use]
    pub fn schema(self) -> Map<String, Value> {
        let property = |argument: &Argument| {
            let kind = if *argument == Paths { "boolean" } else { "string" };
            (argument.name().to_owned(), json!({ "type": kind, "description": argument.about() }))
        };
        let all = self.needs().iter().chain(self.may_have());
        let properties: Map<_, _> = all.map(property).collect();
        let required: Vec<_> = self.needs().iter().map(|argument| argument.name()).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        });
        match schema {
            Value::Object(schema) => schema,
            _ => Map::new(),
        }
    }

    /// Arguments in JSON.
    ///
    /// # Errors
    /// When they are not of this question, with those that are.
    pub fn arguments(self, given: Map<String, Value>) -> Result<Arguments, AskError> {
        let arguments = serde_json::from_value(Value::Object(given)).map_err(|error| {
            let reason: String = error.to_string().chars().take(200).collect();
            AskError::Arguments(format!("{reason}; {}", self.usage()))
        })?;
        self.check(&arguments)?;
        Ok(arguments)
    }

    /// Checks that arguments are of this question.
    ///
    /// # Errors
    /// When one is missing, too long, or not of this question.
    pub fn check(self, arguments: &Arguments) -> Result<(), AskError> {
        let wrong = |argument: &Argument, what: &str| {
            let name = argument.name();
            Err(AskError::Arguments(format!("`{name}` {what}; {}", self.usage())))
        };
        for argument in Argument::ALL {
            let known = self.needs().contains(argument) || self.may_have().contains(argument);
            match argument.given(arguments) {
                Some(_) if !known => return wrong(argument, "is not an argument of this question"),
                Some(text) if MAX_ARGUMENT < text.len() => return wrong(argument, "is too long"),
                None if self.needs().contains(argument) => return wrong(argument, "is missing"),
                _ => {}
            }
        }
        Ok(())
    }

    fn usage(self) -> String {
        let names = |all: &[Argument]| {
            all.iter().map(|argument| argument.name()).collect::<Vec<_>>().join(", ")
        };
        let (needs, may) = (names(self.needs()), names(self.may_have()));
        let needs = if needs.is_empty() { "nothing" } else { &needs };
        format!("{} needs {needs}, and may have {may}", self.name())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn wrong_arguments_say_what_is_right() {
        let check = |question: Question, given: Value, expected: &str| {
            let Value::Object(given) = given else { panic!("an object") };
            let error = question.arguments(given).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.len() < 600, "{error}");
        };
        check(
            Question::WhySlow,
            json!({}),
            "`vm` is missing; why-slow needs vm, and may have host",
        );
        check(Question::WhySlow, json!({ "vm": 3 }), "expected a string; why-slow needs vm");
        check(Question::WhySlow, json!({ "vmm": "a" }), "unknown field `vmm`");
        check(Question::WhySlow, json!({ "vm": "a", "id": "b" }), "`id` is not an argument");
        check(Question::WhySlow, json!({ "vm": "a".repeat(2000) }), "`vm` is too long");
        check(Question::WhySlow, json!({ "a".repeat(9000): 1 }), "why-slow needs vm");
        let error = Question::find("drop_tables").unwrap_err().to_string();
        assert!(error.contains("there are what-is-wrong, why-slow"), "{error}");
        assert_eq!(Question::find("why_slow").unwrap(), Question::WhySlow);
    }

    #[test]
    fn each_schema_has_all_arguments() {
        for question in Question::ALL {
            let schema = question.schema();
            let n = question.needs().len() + question.may_have().len();
            assert_eq!(schema["properties"].as_object().unwrap().len(), n);
        }
    }
}

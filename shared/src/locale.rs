//! What the codes of the catalogue say in ten languages. English is what everything is written in, and what is said where nobody
//! asks for another language: in those the sentence of the code comes first, and then what the scheduler says about this one
//! case, names and remedy, as it is.

use crate::error::Code;
use fluent_bundle::concurrent::FluentBundle;
use fluent_bundle::{FluentArgs, FluentResource};
use std::sync::LazyLock;
use unic_langid::LanguageIdentifier;

macro_rules! locales {
    ($($variant:ident = $tag:literal;)*) => {
        /// A language with the texts of the catalogue.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Locale {
            #[default]
            $($variant,)*
        }

        impl Locale {
            pub const ALL: &[Locale] = &[$(Locale::$variant,)*];

            /// As in BCP 47.
            pub fn tag(self) -> &'static str {
                match self { $(Locale::$variant => $tag,)* }
            }

            /// Its texts, in the form of Fluent.
            fn source(self) -> &'static str {
                match self { $(Locale::$variant => include_str!(concat!("../locales/", $tag, ".ftl")),)* }
            }
        }
    };
}

locales! {
    En = "en";
    ZhCn = "zh-CN";
    ZhTw = "zh-TW";
    Ja = "ja";
    Ko = "ko";
    De = "de";
    Fr = "fr";
    Es = "es";
    PtBr = "pt-BR";
    Ru = "ru";
}

/// Languages of one request that are looked at.
const WISHES_MAX: usize = 32;

static BUNDLES: LazyLock<Vec<FluentBundle<FluentResource>>> =
    LazyLock::new(|| Locale::ALL.iter().map(|&locale| bundle(locale)).collect());

fn bundle(locale: Locale) -> FluentBundle<FluentResource> {
    let language: LanguageIdentifier = locale.tag().parse().unwrap_or_default();
    let mut bundle = FluentBundle::new_concurrent(vec![language]);
    // Marks around values are for texts of both directions, and would be copied along with a name.
    bundle.set_use_isolating(false);
    // What a text with a mistake has besides it stays; a test allows none.
    let resource = FluentResource::try_new(locale.source().to_owned()).unwrap_or_else(|(resource, _)| resource);
    bundle.add_resource_overriding(resource);
    bundle
}

impl Locale {
    /// The locale for a language tag, such as `de-AT`: itself, else that of its language.
    pub fn of_tag(tag: &str) -> Option<Self> {
        let tag = tag.trim().replace('_', "-").to_ascii_lowercase();
        let is = |locale: &&Locale| locale.tag().eq_ignore_ascii_case(&tag);
        if let Some(found) = Self::ALL.iter().find(is) {
            return Some(*found);
        }
        let mut parts = tag.split('-');
        match parts.next()? {
            "zh" if parts.any(|part| matches!(part, "hant" | "hk" | "mo" | "tw")) => Some(Self::ZhTw),
            "zh" => Some(Self::ZhCn),
            "pt" => Some(Self::PtBr),
            language => Self::ALL.iter().copied().find(|locale| locale.tag() == language),
        }
    }

    /// The locale that a header `accept-language` asks for; English where it asks for none that is known.
    pub fn of_header(header: &str) -> Self {
        let mut wishes: Vec<(f32, &str)> = header
            .split(',')
            .take(WISHES_MAX)
            .map(|wish| {
                let (tag, weight) = wish.split_once(';').unwrap_or((wish, ""));
                let weight = weight
                    .trim()
                    .strip_prefix("q=")
                    .map(|weight| weight.parse().unwrap_or(0.0));
                (weight.unwrap_or(1.0), tag)
            })
            .filter(|(weight, _)| *weight > 0.0)
            .collect();
        // Stable: of the same weight the first counts.
        wishes.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        wishes.iter().find_map(|(_, tag)| Self::of_tag(tag)).unwrap_or_default()
    }

    /// The tag in a value of `LC_ALL` and its like, such as `de_DE.UTF-8@euro`; none for `C`.
    pub fn tag_of_posix(value: &str) -> Option<String> {
        let name = value.split(['.', '@']).next().unwrap_or_default();
        (!matches!(name, "" | "C" | "POSIX")).then(|| name.replace('_', "-"))
    }

    fn text(self, key: &str, args: Option<&FluentArgs<'_>>) -> Option<String> {
        let bundle = BUNDLES.get(self as usize)?;
        let pattern = bundle.get_message(key)?.value()?;
        Some(bundle.format_pattern(pattern, args, &mut Vec::new()).into_owned())
    }

    /// What a code says.
    pub fn sentence(self, code: Code) -> String {
        self.text(code.name(), None)
            .unwrap_or_else(|| code.meaning().to_owned())
    }

    /// What is said of one case. `detail` is what a scheduler says in English.
    pub fn say(self, code: Code, detail: &str) -> String {
        if self == Self::En {
            return detail.to_owned();
        }
        let sentence = self.sentence(code);
        // A refusal may pass two edges, and is put into words once.
        if detail.is_empty() || detail.starts_with(&sentence) {
            return if detail.is_empty() { sentence } else { detail.to_owned() };
        }
        let mut args = FluentArgs::new();
        args.set("sentence", sentence.as_str());
        args.set("detail", detail);
        self.text("with-detail", Some(&args))
            .unwrap_or_else(|| detail.to_owned())
    }

    /// The case in what was said of it, in whatever language; English says nothing else.
    pub fn detail(code: Code, said: &str) -> &str {
        let others = Self::ALL.iter().filter(|&&locale| locale != Self::En);
        let mut sentences = others.map(|locale| locale.sentence(code));
        let rest = sentences.find_map(|sentence| said.strip_prefix(sentence.as_str()));
        rest.map_or(said, |rest| rest.trim_start_matches([':', '：', ' ']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Keys, each with the placeholders of its text.
    fn shape(locale: Locale) -> BTreeMap<String, BTreeSet<String>> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in locale
            .source()
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
        {
            let (key, text) = line
                .split_once(" = ")
                .unwrap_or_else(|| panic!("{}: {line}", locale.tag()));
            let names = text.split("{ $").skip(1).filter_map(|rest| rest.split(" }").next());
            let names = names.map(str::to_owned).collect();
            assert!(
                found.insert(key.to_owned(), names).is_none(),
                "{}: {key} twice",
                locale.tag()
            );
        }
        found
    }

    #[test]
    fn all_languages_have_the_same_keys_and_placeholders() {
        assert_eq!(Locale::ALL.len(), 10);
        let english = shape(Locale::En);
        for &code in Code::ALL {
            assert!(english.contains_key(code.name()), "{code}");
            assert_eq!(Locale::En.sentence(code), code.meaning());
        }
        assert_eq!(english.len(), Code::ALL.len() + 1);
        for &locale in Locale::ALL {
            FluentResource::try_new(locale.source().to_owned())
                .unwrap_or_else(|(_, errors)| panic!("{}: {errors:?}", locale.tag()));
            assert_eq!(shape(locale), english, "{}", locale.tag());
        }
    }

    #[test]
    fn no_language_but_english_says_it_in_english() {
        for &locale in Locale::ALL.iter().filter(|&&locale| locale != Locale::En) {
            for &code in Code::ALL {
                let said = locale.say(code, "no job \"x\"; see `systole job ls`");
                assert!(said.ends_with("no job \"x\"; see `systole job ls`"), "{said}");
                assert!(!said.contains(code.meaning()), "{}: {said}", locale.tag());
                assert!(said.len() > 40 && !said.contains('{'), "{}: {said}", locale.tag());
                assert_eq!(locale.say(code, ""), locale.sentence(code));
                assert_eq!(locale.say(code, &said), said);
                assert_eq!(Locale::detail(code, &said), "no job \"x\"; see `systole job ls`");
            }
        }
        assert_eq!(Locale::De.say(Code::JobNotFound, "x"), "Den Job gibt es nicht: x");
        assert_eq!(Locale::En.say(Code::JobNotFound, "x"), "x");
    }

    #[test]
    fn a_header_is_answered_with_the_best_that_there_is() {
        for (header, locale) in [
            ("de", Locale::De),
            ("de-AT", Locale::De),
            ("DE_de", Locale::De),
            ("nl, fr;q=0.5, es;q=0.8", Locale::Es),
            ("tlh, *", Locale::En),
            ("en-GB,de;q=0.9", Locale::En),
            ("de;q=0, ja", Locale::Ja),
            ("zh", Locale::ZhCn),
            ("zh-Hans-SG", Locale::ZhCn),
            ("zh-Hant-HK", Locale::ZhTw),
            ("zh-tw", Locale::ZhTw),
            ("pt-PT", Locale::PtBr),
            ("", Locale::En),
            (";;q=,,-", Locale::En),
        ] {
            assert_eq!(Locale::of_header(header), locale, "{header}");
        }
    }

    #[test]
    fn variables_of_the_environment_name_a_language() {
        for (value, tag) in [
            ("de_DE.UTF-8", Some("de-DE")),
            ("sr_RS@latin", Some("sr-RS")),
            ("C.UTF-8", None),
            ("POSIX", None),
            ("", None),
        ] {
            assert_eq!(Locale::tag_of_posix(value).as_deref(), tag, "{value}");
        }
    }
}

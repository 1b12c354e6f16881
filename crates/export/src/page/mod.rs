//! The shell of every exported page: one head, one style, one table of colours, one bundle of scripts.
//!
//! ```text
//!  page = shell + sections of text, tables and static charts (work without scripts)
//!               + components (flame graph, timelines), each a box with its data as JSON beside it
//! ```
//!
//! A component is a function of a box and its data (`flame.js`, `timeline.js`) and touches nothing outside of the box,
//! so that another page, a server's, can use the same ones; `start.js` starts those that the page has.
//!
//! Names are hostile. They stand in escaped text (`escape`) or in a JSON block (`script_safe`), never in script, style
//! or attributes without quotes. The page's Content-Security-Policy allows exactly its own script and style, by hash,
//! and nothing else: a name that got past the escaping could still not run or load anything.

pub(crate) mod lanes;

use std::io::{self, Write};

use serde_json::Value;
use sha2::{Digest, Sha256};
use table::escape;

const SHELL: &str = include_str!("shell.html");
/// Each colour by what it means, light and dark. The server's page (`ui/`) has this and the style, too.
const COLOURS: &str = include_str!("colours.css");
/// How many colours there are of things that are only to be distinguished, with names are `c0` and so on.
pub(crate) const N_DISTINCT: usize = 8;
const STYLE: &str = include_str!("style.css");
/// The style of static charts.
const CHART_STYLE: &str = include_str!("chart.css");
const SCRIPT: &str = concat!(
    include_str!("common.js"),
    include_str!("flame.js"),
    include_str!("lanes.js"),
    include_str!("timeline.js"),
    include_str!("start.js"),
);

/// A page. What is added is HTML, unless it is called text.
#[derive(Debug)]
pub(crate) struct Page {
    title: String,
    header: String,
    body: String,
    /// JSON blocks.
    data: String,
}

/// What scripts fill a box with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Component {
    /// Frames: `flame.js`.
    Flame,
    /// Lanes: `timeline.js`.
    Timeline,
}

impl Page {
    /// An empty page under a title, which is text.
    pub(crate) fn new(title: &str) -> Self {
        let [header, body, data] = Default::default();
        Self { title: escape(title), header, body, data }
    }

    /// Adds to the header.
    pub(crate) fn header(&mut self, html: &str) {
        self.header += html;
    }

    /// Adds texts to the header: what the reader should know about the data.
    pub(crate) fn notes(&mut self, notes: &[String]) {
        if notes.is_empty() {
            return;
        }
        let items = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note)));
        self.header += &format!("<ul class=\"notes\">\n{}</ul>\n", items.collect::<String>());
    }

    /// Adds to the body.
    pub(crate) fn add(&mut self, html: &str) {
        self.body += html;
    }

    /// Adds a section with an introduction, which is text; nothing when it is empty.
    pub(crate) fn section(&mut self, title: &str, about: &str, html: &str) {
        self.add(&section(title, about, html));
    }

    /// A box for a component. There is at most one of each in a page.
    pub(crate) fn component(&mut self, component: Component, data: &Value) -> String {
        let name = match component {
            Component::Flame => "flame",
            Component::Timeline => "timeline",
        };
        let json = script_safe(data);
        self.data +=
            &format!("<script id=\"{name}-data\" type=\"application/json\">{json}</script>\n");
        format!(
            "<div data-component=\"{name}\"></div>\n\
             <noscript><p>This chart needs JavaScript; everything else does not.</p></noscript>\n"
        )
    }

    /// Writes it. A page without components has no script, and allows none.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let style = format!("{COLOURS}{STYLE}{CHART_STYLE}");
        let script = if self.data.is_empty() { "" } else { SCRIPT };
        let value = |key: &str| match key {
            "title" => self.title.clone(),
            "header" => self.header.clone(),
            "body" => self.body.clone(),
            "style_hash" => hash(&style),
            "script_hash" => hash(script),
            "style" => style.clone(),
            "scripts" if script.is_empty() => String::new(),
            "scripts" => format!("{}<script>{script}</script>\n", self.data),
            other => unreachable!("shell.html asks for {other}, which a test would have shown"),
        };
        fill(SHELL, value, out)?;
        out.flush()
    }
}

/// A section with an introduction, which is text; nothing when it is empty.
pub(crate) fn section(title: &str, about: &str, html: &str) -> String {
    if html.is_empty() {
        return String::new();
    }
    let about = match about {
        "" => String::new(),
        about => format!("<p class=\"faint\">{}</p>\n", escape(about)),
    };
    format!("<section>\n<h2>{}</h2>\n{about}{html}</section>\n\n", escape(title))
}

/// Colours with their names, and what else there is to say of each; both are text.
pub(crate) fn legend<'a>(items: impl IntoIterator<Item = (&'a str, &'a str, String)>) -> String {
    let item = |(style, name, more): (&str, &str, String)| {
        let more = match more.as_str() {
            "" => String::new(),
            more => format!(" <span class=\"faint\">{}</span>", escape(more)),
        };
        format!("<li><span class=\"swatch {style}\"></span>{}{more}</li>\n", escape(name))
    };
    let items: String = items.into_iter().map(item).collect();
    format!("<ul class=\"legend\">\n{items}</ul>\n")
}

/// `12.30 %`; a dash of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{} %", table::percent(part, whole, 2)) }
}

/// The style of a chart that is a file of its own.
pub(crate) fn chart_style() -> String {
    format!("{COLOURS}{CHART_STYLE}")
}

/// JSON that is safe inside a `script` element: `<`, `>` and `&` only as escapes.
fn script_safe(value: &Value) -> String {
    let text = value.to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Replaces each `{{key}}` of `template`, once: what is put in is not looked at again.
fn fill(template: &str, value: impl Fn(&str) -> String, out: &mut impl Write) -> io::Result<()> {
    let mut rest = template;
    while let Some((before, key, after)) = next_key(rest) {
        out.write_all(before.as_bytes())?;
        out.write_all(value(key).as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn next_key(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once("{{")?;
    let (key, after) = rest.split_once("}}")?;
    Some((before, key, after))
}

/// What a Content-Security-Policy calls an inline script or style.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text)))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            out.push(if digit <= chunk.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    const EVIL: &str = "</script><img src=x onerror=a>{{style}}&\"'";

    fn written(page: &Page) -> String {
        let mut out = Vec::new();
        page.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts_and_data_stay_what_they_are() {
        let mut page = Page::new(EVIL);
        page.notes(&[EVIL.to_owned()]);
        let chart = page.component(Component::Flame, &json!({ EVIL: EVIL }));
        page.section(EVIL, EVIL, &(chart + &legend([("user", EVIL, EVIL.to_owned())])));
        let text = written(&page);
        assert_eq!(text.matches("<script").count(), 2);
        assert_eq!(text.matches("</script").count(), 2);
        assert!(!text.contains("<img"));
        // Nothing is filled in twice.
        assert_eq!(text.matches("{{style}}").count(), 9);
        let (_, json) = text.split_once("type=\"application/json\">").unwrap();
        let json = json.split_once("</script>").unwrap().0;
        assert_eq!(serde_json::from_str::<Value>(json).unwrap(), json!({ EVIL: EVIL }));
    }

    #[test]
    fn a_page_without_components_has_no_script() {
        let mut page = Page::new("t");
        page.section("Nothing", "", "");
        let text = written(&page);
        assert!(!text.contains("<script") && !text.contains("Nothing"));
        assert!(text.contains(&format!("script-src '{}'", hash(""))));
    }

    #[test]
    fn each_colour_is_light_dark_and_the_paint_of_a_class() {
        let words = |before: &str, end: char| -> Vec<&str> {
            let parts = COLOURS.split(before).skip(1);
            parts.filter_map(|part| part.split_once(end)).map(|(word, _)| word).collect()
        };
        let values = words("  --", ';');
        let (light, dark) = values.split_at(values.len() / 2);
        for (light, dark) in light.iter().zip(dark) {
            let (name, light) = light.split_once(": #").unwrap();
            let (same, dark) = dark.split_once(": #").unwrap();
            assert_eq!(name, same);
            for digits in [light, dark] {
                assert!(digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            }
        }
        let names: Vec<_> = light.iter().filter_map(|light| light.split(':').next()).collect();
        assert_eq!(words("paint: var(--", ')'), names);
        assert!((0..N_DISTINCT).all(|n| names.contains(&format!("c{n}").as_str())));
    }

    #[test]
    fn base64_is_rfc_4648() {
        for (bytes, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
    }
}

"""The page in headless Chromium: what it shows, does with keys, and never runs."""

import json
import re

import numpy as np
import pytest
from chromium import absent, opened
from pages import data_of

import toynn
from toynn import Session, ops
from toynn.explorer import Page, page
from toynn.jobs.tapes import shown
from toynn.testing.xor import Xor

#: Names as a hostile file may have them: each would run, or end the data, if it were markup.
HOSTILE = (
    "</title></script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "<!--<script>",
    "\u2028window.ran = 3;\u2029'\"&lt;&amp;\\u003cscript\\u003e",
    "{alert(1)}]]><svg onload=window.ran=4>",
)


def hostile():
    """A step whose weights, inputs and blocks are called so."""
    s = Session()
    x, labels = s.input(f"x{HOSTILE[1]}", (4, 3)), s.input("labels", (4,), "i32")
    for k, name in enumerate(HOSTILE):
        with s.tape.block(f"{name}{k}"):
            x = ops.silu(s, ops.linear(s, x, s.parameter(name, np.full((3, 3), 0.1 + k))))
    step = s.minimize(ops.cross_entropy(s, x, labels))
    step(**{f"x{HOSTILE[1]}": np.ones((4, 3)), "labels": [0, 1, 2, 0]})
    return s


def test_data_stay_data_whatever_names_say():
    s = hostile()
    html = page(s, title=HOSTILE[0], values=True, beside={HOSTILE[1]: s}).html
    assert html.count("<script") == 2 and html.count("</script") == 2
    assert "\u2028" not in html and "<img" not in html and "<svg" not in html
    data = data_of(html)
    assert data["title"] == HOSTILE[0] and data["tapes"][1]["name"] == HOSTILE[1]
    names = {tensor["name"] for tensor in data["tapes"][0]["tensors"]}
    assert names.issuperset(HOSTILE)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src &#x27;none&#x27;") and "unsafe" not in policy


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if why := absent():
        pytest.skip(why)
    with opened(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def show(browser, tmp_path):
    """Open a page; afterwards, it has logged nothing."""

    def opens(made, view=""):
        browser.get("about:blank")
        browser.get(f"{made.write(tmp_path / 'step.html').as_uri()}#{view}")
        drawn(browser)
        return browser

    yield opens
    assert browser.get_log("browser") == []


def drawn(browser):
    """Wait until the script has unpacked the data and drawn the page."""
    from selenium.webdriver.support.wait import WebDriverWait

    there = "return window.explorer !== undefined || document.title === 'notebook'"
    WebDriverWait(browser, 60).until(lambda _: browser.execute_script(there))


def text(browser, selector):
    return browser.execute_script(
        "return document.querySelector(arguments[0]).textContent", selector
    )


def press(browser, *keys):
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        chosen = getattr(Keys, key.upper(), key)
        browser.switch_to.active_element.send_keys(chosen)
    return browser.switch_to.active_element


def test_hostile_names_are_shown_and_never_run(show):
    s = hostile()
    made = page(s, title=HOSTILE[0], values=True, beside={HOSTILE[1]: s})
    for view in ("graph&unfold=0&unfold=2&node=0", "memory", "step&call=3", "table"):
        browser = show(made, view)
        assert browser.execute_script("return window.ran") is None
        assert text(browser, "h1") == HOSTILE[0]
        inside = "return document.querySelectorAll('img, main script, main svg script').length"
        assert browser.execute_script(inside) == 0
    assert HOSTILE[2] in text(browser, ".panel.table")


def test_the_policy_stops_a_script_that_were_written_into_the_page(show, browser):
    made = page(Xor().ready()[0])
    broken = Page(made.html.replace("<noscript>", "<script>window.ran = 1</script><noscript>"))
    show(broken)
    assert browser.execute_script("return window.ran") is None
    (entry,) = browser.get_log("browser")
    assert "Content Security Policy" in entry["message"]


def test_keys_reach_all(show):
    engine = toynn.recipes.GPT2().engine
    engine.declare(toynn.GPT2Config(61, 20, 5, 28, 2, 8), toynn.RecipeOptions())
    engine.step_memory()
    browser = show(page(engine))
    rows = "return document.querySelectorAll('.section.open').length"
    assert (
        browser.execute_script(rows) == 0 and text(browser, ".head .title") == "before the blocks"
    )
    browser.execute_script("document.querySelector('#tab-graph').focus()")
    press(browser, "tab", "tab", "tab")  # past the two buttons, to the first section
    head = press(browser, "arrow_down", "arrow_right")
    assert head.get_attribute("aria-expanded") == "true" and browser.execute_script(rows) == 1
    call = press(browser, "arrow_down", "arrow_down")
    assert "layernorm" not in call.text and call.get_attribute("data-node")
    press(browser, "enter")
    shown = text(browser, ".details")
    assert "Formula" in shown and "_kernels" in shown and "Saved for the backward pass" in shown
    tensor = press(browser, "arrow_right")
    assert tensor.get_attribute("aria-label").startswith("tensor ")
    hint = text(browser, ".hint")
    assert "written by" in hint and "read by" in hint and "live from call" in hint
    assert browser.execute_script("return document.querySelectorAll('.lines path').length") > 0
    press(browser, "enter")
    assert "Written by" in text(browser, ".details")
    press(browser, "escape")
    assert not browser.execute_script("return document.body.classList.contains('detailed')")
    browser.execute_script("document.querySelector('#tab-graph').focus()")
    tab = press(browser, "arrow_right")
    assert tab.get_attribute("aria-selected") == "true" and tab.text == "Memory"


def test_the_peak_is_named_and_tapes_are_compared(show):
    def recorded(**options):
        engine = toynn.recipes.GPT2().engine
        engine.declare(toynn.GPT2Config(61, 20, 5, 28, 3, 8), toynn.RecipeOptions(**options))
        engine.step_memory()
        return engine

    plain, other = recorded(), recorded(checkpointing=True)
    browser = show(page(plain, beside={"checkpointing": other}), "memory")
    told = json.loads(plain.session.tape.to_json())
    at = browser.execute_script("return explorer.data.tapes[0].arena")
    assert f"call {at['peak']}, {told['nodes'][at['peak']]['op']}" in text(browser, ".peak-said")
    boxes = "return document.querySelectorAll('.box' + arguments[0]).length"
    inside = [t for t in told["tensors"] if "first" in t and "base" not in t]
    assert browser.execute_script(boxes, "") == len(inside)
    assert browser.execute_script(boxes, ".copy") == 0
    browser.execute_script("document.querySelectorAll('[name=tape]')[1].click()")
    assert browser.execute_script(boxes, ".copy") > 0
    rows = browser.execute_script(
        "return [...document.querySelectorAll('.compared tbody tr')].length"
    )
    assert rows == 2


def test_numbers_are_shown_as_they_are(show):
    """The text of each is the shortest that is this float32, and steps are those of the tape."""
    session, take = Xor().ready()
    take()
    w1 = next(t for t in session.tape.roots if t.name == "w1")
    before = session.download(w1)
    browser = show(page(session, follow="w1[3,1]"))
    assert browser.execute_script("return explorer.view.open") == "step"
    shown = browser.execute_script(
        "explorer.go(0); return [...document.querySelectorAll('.now .change')].map(e => "
        "[e.innerText.split(' ')[0], ...[...e.querySelectorAll('td')].map(d => d.textContent)])"
    )
    assert [each[0] for each in shown] == ["reads", "reads", "writes"]
    numbers = [np.float32(word) for word in shown[1][1:]]
    assert np.array(numbers, np.float32).tobytes() == before.tobytes()
    rows = browser.execute_script(
        "return [...document.querySelectorAll('table.follow tbody tr')].map(r => r.innerText)"
    )
    calls = [row.split("\t")[0].split()[1] for row in rows]
    assert calls == ["matmul.forward", "matmul.backward_weight", "adamw.step", "adamw.step"]
    assert np.float32(rows[0].split("\t")[3]) == before[3, 1]
    session.run()  # of the same inputs: learning rate and all
    assert np.float32(rows[2].split("\t")[4]) == session.download(w1)[3, 1]
    press(browser, "arrow_right")
    assert browser.execute_script("return explorer.view.at") == 1


def small_gpt2():
    """A step of one block over a real text, as `toynn tape` takes it; and the text."""
    sizes = {"layers": 1, "d_model": 16, "heads": 2, "seq": 8}
    step = shown("gpt2", sizes)
    session, take = step.ready()
    take()
    return session, step.text


def rows_of(browser, table):
    words = (
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map("
        "r => [...r.querySelectorAll('td')].map(d => d.textContent))"
    )
    return browser.execute_script(words, table)


def test_a_followed_weight_shows_where_its_gradient_comes_from(show):
    """The sum that makes it, a finite difference, and AdamW's row, beside downloads and NumPy."""
    session, said = small_gpt2()
    tensors = {t.name: t for t in session.tape.roots}
    made = page(session, follow="blk.0.attn_qkv.weight[35,5]", text=said)
    browser = show(made)
    assert len(made.html) < 2e6
    assert f"input: {said}" in text(browser, ".input") and said.startswith("The valu")
    assert re.search(r"loss 5\.\d+, and \d\.\d+ after the update", text(browser, ".input"))
    assert "lr 0.001, beta1 0.9" in text(browser, ".input")
    terms = np.array(rows_of(browser, "table.terms"), float)
    assert terms.shape == (8, 4)
    gradient = float((terms[:, 1] * terms[:, 2]).sum())
    caption = text(browser, ".terms caption")
    assert abs(float(caption.rpartition("= ")[2]) - gradient) < 1e-7
    words = text(browser, ".followed")
    difference, error = map(float, re.search(r"says ([-\d.e]+), \+/- ([-\d.e]+):", words).groups())
    told = float(re.search(r"Its gradient is ([-\d.e]+)\. ", words)[1])
    assert told == pytest.approx(gradient, rel=1e-4)
    assert difference == pytest.approx(gradient, abs=error) and abs(gradient) > 50 * error
    row = {name: number for name, _, number in rows_of(browser, "table.adamw")}
    session.run()
    assert float(row["w"]) == pytest.approx(
        session.download(tensors["blk.0.attn_qkv.weight"])[35, 5], rel=1e-5
    )


def test_the_weights_of_attention_are_shown_though_no_kernel_stores_them(show):
    session, _ = small_gpt2()
    nodes = session.tape.nodes
    i = next(k for k, node in enumerate(nodes) if node.op.kernel == "attention.forward")
    browser = show(page(session, values=True), f"step&call={i}")
    q = np.array(
        browser.execute_script(
            "const {content, view, tape} = explorer; "
            "return [...content(view.steps[view.at].before[tape.nodes[view.at].reads.q])]"
        )
    ).reshape(8, 48)
    scores = np.stack([q[:, h * 8 : h * 8 + 8] @ q[:, 16 + h * 8 : 24 + h * 8].T for h in (0, 1)])
    scores = np.where(np.tri(8, dtype=bool), scores / 8**0.5, -np.inf)
    p = np.exp(scores - scores.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    shown_rows = [float(x or 0) for row in rows_of(browser, "table.p") for x in row]
    assert np.abs(np.array(shown_rows).reshape(p.shape) - p).max() < 6e-4


def test_a_formula_is_whole_and_details_go_with_the_steps(show):
    session, _ = small_gpt2()
    nodes = [node.op.kernel for node in session.tape.nodes]
    i = nodes.index("layernorm.forward")
    lessons = {"toynn/_kernels/norms/layernorm.pyx": ["docs/kernels.md#2-norms", "docs/p.md: 5"]}
    made = page(session, values=True, lessons=lessons, docs="https://a.b")
    browser = show(made, f"step&node={i}")
    assert "h[n,c]  = (x[n,c] - mean[n]) r[n]" in text(browser, ".details .formula")
    marked = browser.execute_script(
        "return [...document.querySelectorAll('.details .formula .on')].map(e => e.textContent[0])"
    )
    assert "y" in marked and "d" not in marked
    more = "More: docs/kernels/layernorm.md; docs/kernels.md#2-norms; docs/p.md: 5"
    assert more in text(browser, ".details")
    ends = ["kernels/layernorm.html", "kernels.html#2-norms", "p.html"]
    links = "return [...document.querySelectorAll('.details a')].map(e => e.href)"
    assert browser.execute_script(links) == [f"https://a.b/{end}" for end in ends]
    browser.execute_script(f"explorer.go({nodes.index('matmul.forward')})")
    assert "matmul" in text(browser, ".details h2")


def test_the_peak_label_is_inside_a_narrow_picture(show):
    made = page(Xor().ready()[0])
    browser = show(made, "memory")
    browser.execute_script(
        "Object.defineProperty(document.querySelector('.arena'), 'clientWidth', {value: 340});"
        "explorer.tape.arena.peak = 6; explorer.view.redraw()"
    )
    box = browser.execute_script(
        "const b = document.querySelector('.peak-name').getBBox(); return [b.x, b.x + b.width]"
    )
    assert box[0] >= 0 and box[1] <= 340


@pytest.mark.parametrize("key", [None, "enter", "space"])
def test_the_arrow_keys_step_once_the_tab_was_opened(key, show):
    """A click on a tab, or Enter or Space, goes into its view."""
    session, take = Xor().ready()
    take()
    browser = show(page(session, values=True))
    if key is None:
        browser.find_element("id", "tab-step").click()
    else:
        browser.execute_script("document.querySelector('#tab-graph').focus()")
        press(browser, "arrow_right", "arrow_right", key)
    where = "return [explorer.view.open, explorer.view.at]"
    press(browser, "arrow_right", "arrow_right")
    assert browser.execute_script(where) == ["step", 2]
    press(browser, "arrow_left")
    assert browser.execute_script(where) == ["step", 1]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(show, browser, tmp_path):
    s = hostile()
    frame = Page(f"<!DOCTYPE html><title>notebook</title>{page(s, title=HOSTILE[0])._repr_html_()}")
    show(frame)
    browser.switch_to.frame(0)
    drawn(browser)
    assert text(browser, "h1") == HOSTILE[0]
    assert browser.execute_script("return window.ran") is None
    assert len(browser.execute_script("return [...document.querySelectorAll('.head')]")) == 6
    browser.switch_to.default_content()


def test_a_function_of_numpy_and_a_view_are_shown(show):
    """Its source, which has no formula; and a tensor that a kernel sees in another shape."""
    s = Session()
    x, w = s.input("x", (4, 3)), s.parameter("w", np.ones((3, 2)))
    y = ops.numpy(s, doubled, lambda dy, d: 2 * dy, [x @ w], (4, 2))
    step = s.minimize(y.mean(), lr=0.1)
    step(x=np.ones((4, 3)))
    nodes = [node.op.kernel for node in s.tape.nodes]
    browser = show(page(s, values=True), f"graph&unfold=0&node={nodes.index('numpy.doubled')}")
    assert "return 2 * d" in text(browser, ".code")
    browser = show(page(s), f"graph&unfold=0&node={nodes.index('sums.forward')}")
    assert "alpha sum_n" in text(browser, ".formula")
    buttons = browser.find_elements("css selector", ".tensors button")
    next(each for each in buttons if "1x8x1" in each.text).click()
    assert "another shape of" in text(browser, "main")


def doubled(d):
    return 2 * d

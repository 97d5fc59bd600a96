"""What people do on the pages, in a real browser."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tasks.keys import create_key, list_keys
from tasks.tables import Role
from tests.browser.conftest import Enter
from tests.live import LiveMill

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>bold</b>\u202eright-to-left {{ 7*7 }}"


def shown_status(page: Page, status: str) -> None:
    """The job reaches this state without a reload."""
    expect(page.locator(".headline .status")).to_have_text(status, timeout=30_000)


def test_pasted_prompts_run_to_their_answers_without_a_reload(enter: Enter) -> None:
    page = enter()
    page.get_by_label("Prompts, one a line").fill("Name three rivers.\nWhy do mills need wind?\n")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview-card")).to_contain_text("Why do mills need wind?")
    expect(page.locator(".figures").first).to_contain_text("2")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/jobs/batch_"))
    page.evaluate("window.notReloaded = true")
    shown_status(page, "completed")
    expect(page.locator(".headline")).to_contain_text("2 of 2 requests")
    expect(page.locator("table.requests tbody tr")).to_have_count(2)
    assert page.evaluate("window.notReloaded") is True

    page.get_by_role("link", name="row-2").click()
    expect(page.locator("pre").first).to_have_text("Why do mills need wind?")
    expect(page.locator("pre").nth(1)).to_have_text("simulated answer")


def test_a_dropped_table_runs_and_its_results_are_downloaded_beside_its_columns(enter: Enter) -> None:
    page = enter()
    content = "name,text\n" + "".join(f"n{number},text {number}\n" for number in range(40))
    # As a drop does: the files are put into the input.
    page.locator("[data-drop]").evaluate(
        """(zone, content) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([content], "texts.csv", { type: "text/csv" }));
            zone.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
        }""",
        content,
    )
    page.get_by_label("Template", exact=True).fill("Summarise: {{ txt }}")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("1 fault")
    expect(page.locator("#preview-card")).to_contain_text("'txt'")

    # The file is not sent again.
    page.get_by_label("Template", exact=True).fill("Summarise: {{ text }}")
    page.get_by_label("Column with each row's id").fill("name")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/jobs/batch_"))
    shown_status(page, "completed")
    expect(page.get_by_role("heading", name="texts.csv")).to_be_visible()
    expect(page.locator("figure svg").first).to_be_visible()

    page.get_by_label("Id", exact=True).fill("n39")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("table.requests tbody tr")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = download.value.path().read_text().splitlines()
    assert rows[0].startswith("name,text,custom_id,status_code,")
    assert rows[40].startswith("n39,text 39,n39,200,")


def test_request_lines_need_no_template(enter: Enter) -> None:
    page = enter()
    line = {
        "custom_id": "only",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "fast", "messages": [{"role": "user", "content": "Hello"}]},
    }
    content = json.dumps(line).encode()
    page.locator("#file").set_input_files(
        {"name": "in.jsonl", "mimeType": "application/jsonl", "buffer": content}
    )
    page.get_by_role("button", name="Submit").click()
    shown_status(page, "completed")
    expect(page.locator("table.requests")).to_contain_text("only")


def test_a_running_job_is_reprioritised_cancelled_rerun_and_deleted(enter: Enter) -> None:
    page = enter()
    page.get_by_label("Prompts, one a line").fill("\n".join(f"Prompt {number}" for number in range(400)))
    page.get_by_label("Model", exact=True).select_option("slow")
    page.get_by_role("button", name="Submit").click()
    shown_status(page, "in progress")
    expect(page.locator("table.requests tbody tr").first).to_be_visible(timeout=20_000)
    page.locator("select[name=priority]").select_option("bulk")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status").first).to_have_text("The priority is bulk now.")
    page.get_by_role("button", name="Cancel").click()
    shown_status(page, "cancelled")
    expect(page.get_by_role("heading", name="Failures by kind")).to_be_visible()
    expect(page.locator("section", has_text="Failures by kind").last).to_contain_text("batch_cancelled")
    first = page.url
    page.get_by_role("button", name="Run again what failed").click()
    page.wait_for_url(lambda url: url != first)
    expect(page.locator(".hint").first).to_contain_text("runs again what failed of")
    page.get_by_role("button", name="Cancel").click()
    shown_status(page, "cancelled")


def test_a_deleted_job_is_gone_after_a_question(enter: Enter, mill: LiveMill) -> None:
    page = enter()
    page.get_by_label("Prompts, one a line").fill("Only one")
    page.get_by_role("button", name="Submit").click()
    shown_status(page, "completed")
    url = page.url
    # Only this dialog is expected: the handlers of the fixture would report it.
    page.evaluate("window.confirm = () => true")
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{mill.url}/jobs")
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 404


def test_everything_can_be_done_without_scripts(enter: Enter) -> None:
    page = enter(java_script_enabled=False)
    page.get_by_label("Prompts, one a line").fill("Hello there")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview-card")).to_contain_text("Hello there")
    page.get_by_role("button", name="Submit").click()
    for _ in range(100):
        if page.locator(".headline .status").inner_text() == "completed":
            break
        page.reload()
    expect(page.locator("table.requests")).to_contain_text("simulated answer")


def test_the_keyboard_alone_submits(enter: Enter) -> None:
    page = enter()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Prompts, one a line")).to_be_focused()
    page.keyboard.type("Typed by hand")
    button = page.get_by_role("button", name="Submit")
    for _ in range(30):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    shown_status(page, "completed")


def test_hostile_text_is_shown_as_text_in_every_place(enter: Enter, mill: LiveMill) -> None:
    page = enter()
    page.locator("#file").set_input_files(
        {
            "name": "<img src=x onerror=alert(3)>.csv",
            "mimeType": "text/csv",
            "buffer": b'id,text\n"<script>alert(4)</script>","<svg onload=alert(5)>"\n',
        }
    )
    page.get_by_label("Template", exact=True).fill(HOSTILE.replace("{{ 7*7 }}", "{{ text }}"))
    page.get_by_label("System prompt").fill(HOSTILE)
    page.get_by_label("Column with each row's id").fill("id")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview-card pre")).to_contain_text("<svg onload=alert(5)>")
    expect(page.get_by_label("System prompt")).to_have_value(HOSTILE)
    page.get_by_role("button", name="Submit").click()
    shown_status(page, "completed")
    expect(page.locator("h1")).to_have_text("<img src=x onerror=alert(3)>.csv")
    page.get_by_role("link", name="<script>alert(4)</script>").click()
    expect(page.locator("h1")).to_have_text("<script>alert(4)</script>")
    expect(page.locator("pre").first).to_contain_text("<b>bold</b>")

    page.goto(f"{mill.url}/jobs?q={HOSTILE}&status={HOSTILE}&model={HOSTILE}")
    expect(page.locator("input[name=q]")).to_have_value(HOSTILE)
    page.goto(f"{mill.url}/keys")
    page.get_by_label("Name").fill("<b onmouseover=alert(6)>")
    page.get_by_role("button", name="Make a key").click()
    expect(page.locator("table")).to_contain_text("<b onmouseover=alert(6)>")
    for bad in ("Template", "JSON schema that every answer follows"):
        page.goto(mill.url)
        page.get_by_label("Prompts, one a line").fill("x")
        page.locator("summary").click()
        page.get_by_label(bad, exact=True).fill(HOSTILE)
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_label(bad, exact=True)).to_have_value(HOSTILE)


def test_an_admin_makes_and_ends_keys_that_log_in(enter: Enter, mill: LiveMill) -> None:
    page = enter()
    page.get_by_role("link", name="Keys").click()
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Role").select_option("read")
    page.get_by_role("button", name="Make a key").click()
    secret = page.locator(".secret").inner_text()
    page.goto(f"{mill.url}/keys")
    assert secret not in page.content()

    other = enter(logged_in=False)
    other.goto(f"{mill.url}/jobs?status=completed")
    assert "/login" in other.url
    other.get_by_label("API key").fill("gm-wrong")
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_role("alert")).to_contain_text("no valid key")
    other.get_by_label("API key").fill(secret)
    other.get_by_role("button", name="Log in").click()
    other.wait_for_url(f"{mill.url}/jobs?status=completed")
    # Somebody who only reads.
    expect(other.get_by_role("link", name="Keys")).to_have_count(0)
    other.goto(mill.url)
    expect(other.get_by_text("may look, but not submit")).to_be_visible()

    (key,) = [key for key in list_keys(mill.backends.database) if key.name == "nightly"]
    page.goto(f"{mill.url}/keys")
    page.evaluate("window.confirm = () => true")
    page.get_by_role("button", name="Revoke nightly").click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    assert key.prefix in page.content()
    other.reload()
    assert "/login" in other.url


def test_the_fleet_and_the_models_are_shown_live(enter: Enter) -> None:
    page = enter(Role.READ)
    page.get_by_role("link", name="Fleet").click()
    expect(page.locator("table").first).to_contain_text("fast@")
    expect(page.get_by_role("link", name="Flower")).to_have_attribute("href", re.compile(r"^http://127"))
    page.get_by_role("link", name="Models").click()
    expect(page.locator("table")).to_contain_text("/v1/chat/completions")


@pytest.mark.parametrize("path", ["", "jobs", "fleet", "models", "keys"])
def test_no_page_is_wider_than_a_phone(enter: Enter, mill: LiveMill, path: str) -> None:
    create_key(mill.backends.database, tenant="local", name="w" * 100, role=Role.READ)
    page = enter(viewport={"width": 360, "height": 740})
    page.goto(f"{mill.url}/{path}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_is_kept_fresh_keeps_focus_and_open_tables_and_says_the_end_once(enter: Enter) -> None:
    page = enter()
    page.get_by_label("Prompts, one a line").fill("\n".join(f"Prompt {number}" for number in range(80)))
    page.get_by_label("Model", exact=True).select_option("slow")
    page.get_by_role("button", name="Submit").click()
    summary = page.get_by_text("Speed as a table")
    summary.focus()
    page.keyboard.press("Enter")
    before = page.locator("[data-keep=speed] tr").count()
    shown_status(page, "completed")
    expect(page.locator("[data-voice]")).to_have_text("The job is completed.")
    expect(page.locator("[data-keep=speed]")).to_have_attribute("open", "")
    expect(summary).to_be_focused()
    assert page.locator("[data-keep=speed] tr").count() > before


def test_a_megabyte_without_a_space_leaves_every_page_as_wide_as_a_phone(
    enter: Enter, mill: LiveMill
) -> None:
    page = enter(viewport={"width": 360, "height": 740})
    row = json.dumps({"id": "i" * 500, "text": "W" * 1_000_000})
    name = "f" * 200 + ".jsonl"
    page.locator("#file").set_input_files(
        {"name": name, "mimeType": "application/jsonl", "buffer": row.encode()}
    )
    page.get_by_label("Template", exact=True).fill("{{ text }}")
    page.get_by_label("Column with each row's id").fill("id")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview-card pre")).to_be_visible()
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) <= 360
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".headline .status")).to_have_text(re.compile("completed|failed"), timeout=30_000)
    assert page.evaluate(width) <= 360
    page.goto(f"{page.url}/requests/0")
    expect(page.locator("pre").first).to_contain_text("WWWW")
    assert page.evaluate(width) <= 360
    answer = page.context.request.get(page.url + "/request")
    assert answer.json()["messages"][0]["content"] == "W" * 1_000_000
    page.goto(f"{mill.url}/jobs")
    assert page.evaluate(width) <= 360

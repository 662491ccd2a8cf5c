"""Client methods about webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, api_path
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import webhooks as views
else:
    views = lazy("headway.contract.views.webhooks")


class WebhookCalls(Calls):
    """Methods about the webhooks of a project."""

    def webhooks(self, project: str) -> list[views.WebhookView]:
        """Return the webhooks of a project, by name."""
        return self._get(api_path("projects", project, "webhooks"), Page[views.WebhookView]).items

    def create_webhook(self, project: str, wanted: views.WebhookRequest) -> views.WebhookSecret:
        """Create a webhook. Only this answer contains its secret."""
        body = wanted.model_dump(mode="json", exclude_unset=True)
        return self._post(api_path("projects", project, "webhooks"), views.WebhookSecret, json=body)

    def change_webhook(self, project: str, name: str, change: views.WebhookChange) -> views.WebhookView:
        """Change, disable or enable a webhook."""
        body = change.model_dump(mode="json", exclude_unset=True)
        path = api_path("projects", project, "webhooks", name)
        return self._send("PATCH", path, views.WebhookView, json=body)

    def delete_webhook(self, project: str, name: str) -> None:
        """Delete a webhook with its messages."""
        self._delete(api_path("projects", project, "webhooks", name))

    def rotate_webhook_secret(self, project: str, name: str) -> views.WebhookSecret:
        """Replace the secret of a webhook, and return the new one."""
        path = api_path("projects", project, "webhooks", name, "rotate")
        return self._post(path, views.WebhookSecret)

    def test_webhook(self, project: str, name: str) -> views.DeliveryView:
        """Send a test message, and return its delivery, which waits."""
        return self._post(api_path("projects", project, "webhooks", name, "test"), views.DeliveryView)

    def deliveries(self, project: str, name: str) -> list[views.DeliveryView]:
        """Return the latest deliveries of a webhook, newest first."""
        path = api_path("projects", project, "webhooks", name, "deliveries")
        return self._get(path, Page[views.DeliveryView]).items

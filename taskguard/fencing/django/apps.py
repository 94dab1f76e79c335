from django.apps import AppConfig


class FencingConfig(AppConfig):  # type: ignore[misc]
    name = "taskguard.fencing.django"
    label = "taskguard_fencing"
    verbose_name = "taskguard: fences"
